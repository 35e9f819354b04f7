"""What must be equal on both sides before one may be called better: the fields, and what is known of them with its source."""

import difflib
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from netgain.errors import UsageError
from netgain.plain_file import read_plain

Part = Literal["identity", "resources", "limits", "load", "time"]
Source = Literal["server", "declared", "result"]
Value = str | int


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """`part`: a comparison of scaling lets `resources` and `limits` differ. `unit` of a number: "" for counts, or "bytes";
    None: text."""

    name: str
    part: Part
    says: str
    unit: Literal["", "bytes"] | None = None


FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field(name="model", part="identity", says="name of the model; counts where the weights' digest is unknown"),
        Field(name="weights", part="identity", says="SHA-256 of the model's files"),
        Field(name="dtype", part="identity", says="number types that the weights are kept and multiplied in"),
        Field(name="kv_dtype", part="identity", says="number type of the KV cache"),
        Field(name="device", part="resources", says="kind of device, such as cpu or H200"),
        Field(name="devices", part="resources", says="how many devices", unit=""),
        Field(name="threads", part="resources", says="threads that compute, of a server on a CPU", unit=""),
        Field(name="memory", part="resources", says="bytes for weights and KV cache", unit="bytes"),
        Field(
            name="kv_tokens",
            part="resources",
            says="tokens that the KV cache holds; counts where memory is unknown",
            unit="",
        ),
        Field(name="max_length", part="limits", says="tokens of a request, prompt and answer together", unit=""),
        Field(name="max_running", part="limits", says="requests computed together", unit=""),
        Field(name="max_batch_tokens", part="limits", says="tokens computed in one step", unit=""),
        Field(name="workload", part="load", says="prompts and sampling settings, by digest"),
        Field(name="load", part="load", says="how requests came"),
        Field(name="time", part="time", says="whether both were measured in turns"),
    )
}
DECLARABLE = tuple(name for name, field in FIELDS.items() if field.part in ("identity", "resources", "limits"))
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "fp16": "f16",
    "float32": "f32",
    "fp32": "f32",
    "float": "f32",
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i)?b?|b)?", re.IGNORECASE)


class Trait(msgspec.Struct, frozen=True):
    """A value of one field, and where it is known from."""

    value: Value
    source: Source


Traits = Mapping[str, Trait]


def canonical(name: str, value: object) -> Value | None:
    """A field's value in the one form that is compared; None where it says nothing ("auto", empty, no number)."""
    field = FIELDS[name]
    if isinstance(value, bool) or value is None:
        return None
    if field.unit is None:
        text = str(value).strip()
        if name in ("dtype", "kv_dtype"):
            text = "+".join(sorted(_DTYPES.get(part, part) for part in text.lower().removeprefix("torch.").split("+")))
        return None if text.lower() in ("", "auto", "unknown", "none") else text
    if isinstance(value, int | float):
        return int(value) if math.isfinite(value) and value >= 1 else None
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or (found[2] and field.unit == ""):
        return None
    scale = (1024 if found[3] else 1000) ** ("kmgt".index(found[2].lower()) + 1) if found[2] else 1
    return int(float(found[1]) * scale) or None


def declared(given: Sequence[str], side: str) -> dict[str, Trait]:
    """Read `FIELD=VALUE[,FIELD=VALUE]`, or the path of a TOML file with such fields, for each of `given`. Raises UsageError."""
    found: dict[str, Trait] = {}
    for text in given:
        pairs = _from_toml(Path(text)) if text.endswith(".toml") and "=" not in text else _from_text(text, side)
        for name, value in pairs.items():
            check_name(name, DECLARABLE, f"--{side}-is")
            known = canonical(name, value)
            if known is None:
                raise UsageError(f"--{side}-is declares {name} as {value!r}, which is no {FIELDS[name].says}")
            found[name] = Trait(known, "declared")
    return found


def check_name(name: str, names: Sequence[str], option: str) -> None:
    """Raises UsageError with the nearest valid name."""
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{option} knows no field {name!r}: {hint}Fields: {', '.join(names)}")


def joined(told: Traits, declarations: Traits, side: str, where: str) -> dict[str, Trait]:
    """What the server told, filled up with what the user declares. A declared model replaces the served name.

    Raises UsageError where a declaration contradicts the server.
    """
    for name, trait in declarations.items():
        own = told.get(name)
        if own is not None and name != "model" and own.value != trait.value:
            raise UsageError(
                f"--{side}-is declares {name}={trait.value}, but {where} says {own.value}: leave the declaration out"
            )
    return {**declarations, **told, **{name: trait for name, trait in declarations.items() if name == "model"}}


def written(name: str, value: Value | None) -> str:
    """A value for people."""
    if value is None:
        return "unknown"
    if FIELDS[name].unit == "bytes":
        return f"{int(value) / 2**30:.2f} GiB"
    text = f"{value:,}" if isinstance(value, int) else value
    return text[:12] if name in ("weights", "workload") and len(text) == 64 else text


def _from_text(text: str, side: str) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for part in text.split(","):
        name, found, value = part.partition("=")
        if not found:
            raise UsageError(
                f"--{side}-is {text!r} is not understood; write FIELD=VALUE, as in dtype=bf16,devices=1, or name a .toml file"
            )
        pairs[name.strip()] = value.strip()
    return pairs


def _from_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(read_plain(path).decode())
    except OSError as error:
        raise UsageError(f"cannot read the declaration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no TOML: {error}") from error
