"""How an answer of `netgain calc` is written: the figure, the formula behind it and the same with the numbers put in."""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
import typer

from netgain.cost.quantity import Quantity, bandwidth, write_number, write_size, write_time

Unit = Literal["bytes", "bytes/s", "s", "share", "tokens", "x", ""]
NONE = Quantity(0.0, "0")
Bandwidth = Annotated[
    Quantity, typer.Option("--bandwidth", parser=bandwidth, help="Effective under load, never the link's peak.")
]
AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure in its base unit. `formula` in words, `numbers` with the values that were given."""

    name: str
    value: float
    unit: Unit
    formula: str
    numbers: str

    @property
    def text(self) -> str:
        match self.unit:
            case "bytes" | "bytes/s":
                return write_size(self.value, per_second=self.unit == "bytes/s")
            case "s":
                return write_time(self.value)
            case "share":
                return f"{self.value * 100:.4g} %" if math.isfinite(self.value) else "infinite"
            case "x":
                return f"{write_number(self.value)}x"
            case _:
                return f"{write_number(self.value)} {self.unit}".rstrip()


def answer(lines: Sequence[Line], source: str, says: Sequence[str] = (), json: bool = False) -> None:
    """Print; the first line is what was asked for. In JSON an infinite value is null, and its text says so."""
    if json:
        first = lines[0]
        shown = {
            "answer": {"name": first.name, "value": first.value, "unit": first.unit, "text": first.text},
            "lines": [{**msgspec.structs.asdict(line), "text": line.text} for line in lines],
            "says": list(says),
            "source": source,
        }
        print(msgspec.json.encode(shown).decode())
        return
    for line in lines:
        print(f"{line.name}: {line.text}")
        print(f"    = {line.formula}")
        if line.numbers:
            print(f"    = {line.numbers}")
    for told in says:
        print(f"\n{told}")
    print(f"\nsource: {source}")
