"""What a measurement cost: its window is paid, and what does not tell the requests tells no cost per request."""

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from netgain.cost.price import Price
from netgain.measuring.measurement.cost import Pricing, cost_of
from netgain.measuring.measurement.importing import import_result, read_result
from netgain.measuring.measurement.result import Measurement, Server, read_measurement
from netgain.measuring.measurement.show import show
from netgain.measuring.workload.slo import parse_slo

SAMPLES = Path(__file__).parent / "samples"
PRICE = Price(per_device_hour=3.6, currency="EUR")  # a thousandth for each second
PRICING = Pricing(price=PRICE)


def read(name: str, slo: str | None = None) -> Measurement:
    return read_result(SAMPLES / name, slo=None if slo is None else parse_slo(slo))[0]


def shown(measurement: Measurement) -> str:
    console = Console(record=True, width=160, file=io.StringIO())
    show(measurement, console)
    return console.export_text()


def test_the_window_of_steady_load_is_paid() -> None:
    measurement = read("vllm-bench-detailed.json", "e2e=100s")
    summary = measurement.summary
    found = cost_of(measurement, PRICING)
    assert found.paid == pytest.approx(summary.window_s / 1000.0)
    assert summary.output_tokens_per_s is not None
    assert found.per_million_output_tokens == pytest.approx(1e3 / summary.output_tokens_per_s)
    assert summary.attainment == 1.0
    assert summary.requests_per_s is not None
    assert found.per_request_within_slo == pytest.approx(1e-3 / summary.requests_per_s)
    assert found.per_million_tokens is not None
    assert found.per_million_tokens < found.per_million_output_tokens


def test_half_of_the_requests_within_the_slo_cost_twice_as_much_each() -> None:
    measurement = read("vllm-bench-detailed.json", "e2e=100s")
    half = msgspec.structs.replace(measurement, summary=msgspec.structs.replace(measurement.summary, attainment=0.5))
    every, good = cost_of(measurement, PRICING), cost_of(half, PRICING)
    assert every.per_request_within_slo is not None
    assert good.per_request_within_slo == pytest.approx(2 * every.per_request_within_slo)


def test_an_slo_that_nothing_met_or_that_was_not_given_leaves_the_cost_of_a_request_unknown() -> None:
    missed = cost_of(read("vllm-bench-detailed.json", "e2e=1us"), PRICING)
    assert (missed.per_request_within_slo, missed.unknown) == (None, ("no request met the SLO",))
    ungiven = cost_of(read("vllm-bench-detailed.json"), PRICING)
    assert (ungiven.per_request_within_slo, ungiven.unknown) == (None, ("no SLO was given",))


def test_figures_of_a_client_that_was_the_bottleneck_give_no_cost() -> None:
    measurement = read("vllm-bench-detailed.json", "e2e=100s")
    void = msgspec.structs.replace(measurement, summary=msgspec.structs.replace(measurement.summary, void="late"))
    found = cost_of(void, PRICING)
    assert (found.per_million_output_tokens, found.per_million_tokens, found.per_request_within_slo) == (None,) * 3
    assert found.paid is not None


@pytest.mark.parametrize(
    ("engine", "said", "asked", "count", "said_by"),
    [
        ("netgain", {"devices": 4}, None, 4, "as the server says"),
        ("sglang", {"tp_size": 2, "pp_size": 1, "dp_size": 3}, None, 6, "as the server says"),
        (
            "sglang",
            {"tp_size": 4, "pp_size": 1, "dp_size": 4, "enable_dp_attention": True},
            None,
            4,
            "as the server says",
        ),
        ("netgain", {"devices": 4}, 8, 8, "as --devices says"),
        ("vllm", {}, 2, 2, "as --devices says"),
        ("vllm", {}, None, 1, "assumed, since nothing says how many: --devices does"),
        ("sglang", {"tp_size": 2}, None, 1, "assumed, since nothing says how many: --devices does"),
    ],
)
def test_devices_are_those_asked_for_or_told_or_one(engine, said, asked, count, said_by) -> None:  # type: ignore[no-untyped-def]
    measurement = msgspec.structs.replace(
        read("vllm-bench-detailed.json"), server=Server(url=None, model="m", engine=engine, said=said)
    )
    found = cost_of(measurement, Pricing(price=PRICE, devices=asked))
    assert (found.devices.count, found.devices.said_by) == (count, said_by)
    alone = cost_of(read("vllm-bench-detailed.json"), PRICING)
    assert alone.per_million_output_tokens is not None
    assert found.per_million_output_tokens == pytest.approx(count * alone.per_million_output_tokens)


def test_the_cost_is_in_the_file_and_on_the_terminal_only_with_a_price(tmp_path: Path) -> None:
    found = import_result(SAMPLES / "vllm-bench-detailed.json", None, tmp_path, parse_slo("e2e=1us"), PRICING)
    assert read_measurement(tmp_path).cost == found.cost is not None
    assert found.cost is not None
    text = shown(found)
    assert PRICE.written(found.cost.per_million_output_tokens) in text
    assert "cost at 3.60 EUR per device-hour, 1 device (assumed" in text
    assert "unknown per request within the SLO" in text
    assert "no request met the SLO" in text
    assert "an idle device costs the same" in text
    assert "cost" not in shown(read("vllm-bench-detailed.json"))


def test_figures_without_requests_still_tell_the_cost_of_tokens() -> None:
    found = cost_of(read("vllm-bench-summary.json", "ttft=1s"), PRICING)
    assert found.per_million_output_tokens is not None
    assert found.per_request_within_slo is None
