"""What a measurement prints fits a terminal of 80 columns without losing what is looked for elsewhere."""

import io
from pathlib import Path

import msgspec
from rich.console import Console

from netgain.measuring.measurement.importing import read_result
from netgain.measuring.measurement.result import Saturation, Window
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


def test_a_search_says_below_its_table_why_a_window_did_not_hold() -> None:
    why = "the client's lateness p99 was 52.6 ms, over its budget of 50.0 ms: lower the rate or free a core for the client"
    windows = tuple(
        Window(
            rate_per_s=rate,
            seed=0,
            met=met,
            why=said,
            early=False,
            requests=60,
            failed=0,
            ttft_s=0.8515,
            itl_s=0.0628,
            attainment=0.933,
            goodput_per_s=2.44,
            output_tokens_per_s=80.0,
            in_flight=3.2,
            lasted_s=20.0,
        )
        for rate, met, said in ((2.58, True, "all targets held"), (3.07, None, why))
    )
    found = Saturation(
        slo="ttft=2s",
        low_per_s=2.58,
        high_per_s=3.07,
        low_met=(1, 1),
        high_met=(0, 1),
        goodput_per_s=2.44,
        limit="budget",
        text="holds up to a rate between 2.58 and 3.07 requests/s",
        windows=windows,
    )
    lines = narrow(msgspec.structs.replace(read_result(SAMPLE)[0], saturation=found))
    held = next(line.split() for line in lines if line.split()[:1] == ["2.58"])
    assert held == ["2.58", "yes", "851.5", "ms", "62.8", "ms", "93.3%", "2.44", "3.2"]
    assert f"3.07/s ?: {why}" in lines
    assert "all targets held" not in "\n".join(lines)
