"""What a draft was trained for and how well it did: the file that lies beside its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from netgain.errors import UsageError

MANIFEST, WEIGHTS = "draft.json", "draft.safetensors"
SCHEMA = 1

Kind = Literal["feature", "medusa", "layers"]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: a head that reads the target's features, Medusa heads, or a model of some of the target's layers.

    `target` and `tokenizer` are the digests of the weights and the vocabulary that it was trained for, `data` that of the
    texts. `taps` are the target's layers whose outputs make its features, `positions` how many tokens ahead it was
    trained to say. `acceptance[i]` is the share of held-out places where the drafts up to position i all stood under greedy
    decoding, over `held_out` places; None where it was not measured.
    """

    kind: Kind
    target: str
    target_name: str
    tokenizer: str
    data: str
    taps: tuple[int, ...]
    positions: int
    recipe: dict[str, Any]
    acceptance: tuple[float, ...] | None
    held_out: int
    made_at: str
    schema: int = SCHEMA


def read_manifest(folder: Path) -> Manifest:
    """Raises UsageError where `folder` holds no draft, a damaged one, or one of a later netgain."""
    path = folder / MANIFEST
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{folder} holds no draft ({path.name}: {error.strerror}); netgain draft train makes one"
        ) from error
    try:
        schema = msgspec.json.decode(raw, type=dict[str, Any]).get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            raise UsageError(f"{path} is of schema {schema}, this netgain reads up to {SCHEMA}: use a later one")
        return msgspec.json.decode(raw, type=Manifest)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is no manifest of a draft ({error}); train it again") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the file at once."""
    part = folder / f"{MANIFEST}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    part.replace(folder / MANIFEST)


def check_target(manifest: Manifest, folder: Path, weights: str, tokenizer: str) -> None:
    """Raises UsageError unless the draft was trained for these weights: on others it would agree with nothing."""
    for what, trained, given in (("weights", manifest.target, weights), ("tokenizer", manifest.tokenizer, tokenizer)):
        if trained != given:
            raise UsageError(
                f"{folder} was trained for {manifest.target_name}, whose {what} digest is {trained[:12]}; the model's here is "
                f"{given[:12]}. Train a draft for this model (netgain draft train), or serve that one"
            )
