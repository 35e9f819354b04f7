"""What a measurement prints fits a terminal of 80 columns without losing what is looked for elsewhere."""

import io
from pathlib import Path

import msgspec
from rich.console import Console

from netgain.measuring.measurement.importing import read_result
from netgain.measuring.measurement.show import show
from netgain.measuring.observe.names import MEANINGS, Figure
from netgain.measuring.observe.scrape import Observed

SAMPLE = Path(__file__).parent / "samples/vllm-bench-detailed.json"
FIGURES = {
    name: Figure(role=meaning.role, unit=meaning.unit, name=meaning.names["llama.cpp"][0], tried=())
    for name, meaning in MEANINGS.items()
    if "llama.cpp" in meaning.names
}


def narrow(measurement) -> list[str]:
    console = Console(width=80, file=(printed := io.StringIO()))
    show(measurement, console)
    return printed.getvalue().splitlines()


def test_names_of_metrics_are_shown_to_their_last_letter() -> None:
    side = Observed(url="http://a/metrics", engine="llama.cpp", figures=FIGURES)
    lines = narrow(msgspec.structs.replace(read_result(SAMPLE)[0], server_side=side))
    pieces = "".join(line.rstrip().rpartition("  ")[2] for line in lines)
    for figure in FIGURES.values():
        assert figure.name is not None
        assert figure.name in pieces
    assert "…" not in "".join(lines)


def test_an_interval_stands_whole_in_a_line_below_its_value() -> None:
    measurement = read_result(SAMPLE)[0]
    summary = measurement.summary
    ttft = msgspec.structs.replace(summary.ttft, p50=1.76, interval={"p50": (0.7361, 2.64)}, thin=())
    lines = narrow(msgspec.structs.replace(measurement, summary=msgspec.structs.replace(summary, ttft=ttft)))
    at = next(n for n, line in enumerate(lines) if line.split()[:1] == ["TTFT"])
    assert "1.76 s" in lines[at]
    assert lines[at + 1].split() == ["736.1", "ms", "to", "2.64", "s"]
