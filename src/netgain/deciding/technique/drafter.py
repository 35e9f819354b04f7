"""A draft that somebody has: a model, or heads trained for the target. What is known of it before it is tried."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from netgain.errors import UsageError

Kind = Literal["feature", "medusa", "layers", "model", "eagle", "eagle3", "hf-medusa", "dflash", "dspark", "mtp"]
"""`feature`, `medusa` and `layers` are netgain's own (netgain draft train); `mtp` are modules that the target's checkpoint
carries; the others are checkpoints in the form that vLLM and SGLang read."""

MODELS: tuple[Kind, ...] = ("model", "layers")
OF_THE_TARGET = "mtp"  # instead of a folder: the target's own modules
_MANIFEST, _WEIGHTS, _CONFIG = "draft.json", "draft.safetensors", "config.json"
_NAMED: tuple[tuple[str, Kind], ...] = (
    ("dspark", "dspark"),
    ("dflash", "dflash"),
    ("eagle3", "eagle3"),
    ("eagle", "eagle"),
    ("medusa", "hf-medusa"),
)
"""What the names of an architecture have in them -> kind; the first that fits."""

_BLOCKS: tuple[Kind, ...] = ("hf-medusa", "dflash", "dspark")  # all drafts of a step come from one pass
_VALUE_BYTES = 2  # of keys, values and features in 16 bit


class Drafter(msgspec.Struct, frozen=True, kw_only=True):
    """`survival[i]`: the share of verified drafts whose first i + 1 tokens all stood, None where nobody measured it, with its
    `origin` in words. `pass_cost` is the time of one pass of the draft as a share of a decode step of the target alone, with
    `cost_basis`; `one_pass`: all drafts of a step come from one pass. `token_bytes`: taken of every token in the KV cache."""

    source: str
    kind: Kind
    survival: tuple[float, ...] | None = None
    origin: str = ""
    pass_cost: float | None = None
    cost_basis: str = ""
    one_pass: bool = False
    weight_bytes: int | None = None
    token_bytes: int | None = None

    @property
    def is_model(self) -> bool:
        return self.kind in MODELS

    def on(self, step_weight_bytes: int | None) -> "Drafter":
        """With the cost of a pass estimated from the weights that it reads, where it is not known better."""
        if self.pass_cost is not None or not step_weight_bytes or self.weight_bytes is None:
            return self
        cost = self.weight_bytes / step_weight_bytes
        basis = f"estimated from weights read: {self.weight_bytes / 1e6:.0f} MB of {step_weight_bytes / 1e6:.0f} MB"
        return msgspec.structs.replace(self, pass_cost=cost, cost_basis=basis)


class _Manifest(msgspec.Struct):
    """The part of a trained draft's manifest that matters here."""

    kind: Literal["feature", "medusa", "layers"]
    target_name: str
    acceptance: tuple[float, ...] | None
    held_out: int


def read_drafter(source: str, survival: tuple[float, ...] | None = None, pass_cost: float | None = None) -> Drafter:
    """What `source` is: a folder, a GGUF file, a name that the engine will fetch, or `mtp`. `survival` and `pass_cost` go before
    what its files say. Raises UsageError for values that cannot be meant and for files that cannot be read."""
    if survival is not None and not (
        survival and all(0 <= later <= before for before, later in zip((1.0, *survival), survival, strict=False))
    ):
        raise UsageError(f"survival falls from at most 1 to at least 0, position by position; got {list(survival)}")
    if pass_cost is not None and not 0 <= pass_cost < 10:
        raise UsageError(f"the cost of a draft's pass is {pass_cost:g} of a decode step; give a share such as 0.05")
    found = _from_files(source)
    if survival is not None:
        found = msgspec.structs.replace(found, survival=survival, origin="as given (--draft-survival)")
    if pass_cost is not None:
        found = msgspec.structs.replace(found, pass_cost=pass_cost, cost_basis="as given (--draft-cost)")
    return found


def _from_files(source: str) -> Drafter:
    if source == OF_THE_TARGET:
        return Drafter(source=source, kind="mtp")
    folder = Path(source).expanduser()
    if folder.exists():  # a server is started, and started again, wherever that may be
        source = str(folder.absolute())
    try:
        if (folder / _MANIFEST).is_file():
            return _trained(source, folder)
        if (folder / _CONFIG).is_file():
            return _checkpoint(source, folder)
    except (OSError, ValueError, KeyError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"the draft in {source} cannot be read ({error!r}); netgain draft inspect says more"
        ) from error
    if folder.is_file():
        return Drafter(source=source, kind="model", weight_bytes=folder.stat().st_size)
    if folder.is_dir():
        raise UsageError(f"{source} holds neither {_MANIFEST} nor {_CONFIG}, so it is no draft")
    return Drafter(source=source, kind="model")  # a name in a hub


def _trained(source: str, folder: Path) -> Drafter:
    manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=_Manifest)
    origin = f"its manifest: greedy, {manifest.held_out} held-out places of {manifest.target_name}"
    token_bytes = (
        _kv_bytes(json.loads((folder / _CONFIG).read_bytes()))
        if manifest.kind == "layers"
        else _head_bytes(_shapes(folder / _WEIGHTS))
    )
    return Drafter(
        source=source,
        kind=manifest.kind,
        survival=manifest.acceptance or None,
        origin=origin if manifest.acceptance else "",
        one_pass=manifest.kind == "medusa",
        weight_bytes=_weights(folder),
        token_bytes=token_bytes,
    )


def _checkpoint(source: str, folder: Path) -> Drafter:
    config: dict[str, Any] = json.loads((folder / _CONFIG).read_bytes())
    names = " ".join(map(str, config.get("architectures") or ())).lower() + f" {config.get('model_type', '')}".lower()
    kind: Kind = next((kind for word, kind in _NAMED if word in names), "model")
    return Drafter(
        source=source,
        kind=kind,
        one_pass=kind in _BLOCKS,
        weight_bytes=_weights(folder),
        token_bytes=_kv_bytes(config) if kind != "hf-medusa" else 0,
    )


def _weights(folder: Path) -> int | None:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def _kv_bytes(config: dict[str, Any]) -> int | None:
    """Of a token, in 16 bit; None where the configuration does not tell."""
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    size = config.get("head_dim") or (hidden // heads if hidden and heads else None)
    if not layers or not heads or not size:
        return None
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * size * _VALUE_BYTES)


def _head_bytes(shapes: dict[str, tuple[int, ...]]) -> int:
    """What is kept of the target's taps, and the keys and values of its own layer if it has one."""
    own = (shapes[name][0] for name in (f"layer.self_attn.{part}_proj.weight" for part in "kv") if name in shapes)
    return _VALUE_BYTES * (shapes["fuse.weight"][1] + sum(own))


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """From the header of a safetensors file: eight bytes of length, then JSON."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return {name: tuple(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
