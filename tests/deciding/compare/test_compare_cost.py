"""What both sides of a comparison cost, by the devices that each is known to have."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from netgain.cost.price import Devices, Price, Served, compared, cost, parse_price
from netgain.deciding.compare.cost import costs_of_results, devices_of
from netgain.deciding.compare.loading import load
from netgain.deciding.compare.page import render_comparison
from netgain.deciding.compare.rule import rule
from netgain.deciding.compare.show import show
from netgain.deciding.compare.traits import Trait
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.measuring.workload.slo import parse_slo
from tests.deciding.compare.test_compare_results import SAMPLES
from tests.deciding.compare.test_comparison_page import build  # noqa: F401

PRICE = Price(per_device_hour=3.6, currency="EUR")
DETAILED = str(SAMPLES / "vllm-bench-detailed.json")


def devices(before: Trait | None, after: Trait | None) -> dict[str, Devices]:
    sides = [{} if trait is None else {"devices": trait} for trait in (before, after)]
    return devices_of(rule(sides[0], sides[1], "equal resources", {"devices": "asked"}, ("devices",)).rows)


@pytest.mark.parametrize(
    ("before", "after", "counts", "said"),
    [
        (Trait(2, "declared"), Trait(2, "server"), (2, 2), ("as declared", "as the server says")),
        (Trait(1, "server"), Trait(4, "result"), (1, 4), ("as the server says", "as the result says")),
        (None, Trait(4, "server"), (None, 4), ("--baseline-is devices=N says how many", "as the server says")),
    ],
)
def test_devices_are_those_that_each_side_is_known_to_have(before, after, counts, said):
    found = devices(before, after)
    assert (found[BASELINE].count, found[CANDIDATE].count) == counts
    assert (found[BASELINE].said_by, found[CANDIDATE].said_by) == said


def test_one_device_each_is_assumed_and_said_where_neither_side_tells():
    found = devices(None, None)
    assert {side.count for side in found.values()} == {1}
    assert str(found[BASELINE]).startswith("1 device (assumed, since nothing says how many: --baseline-is devices=N")


def test_results_are_paid_over_their_windows_and_judged_by_the_slo_that_is_asked():
    one = load([DETAILED])
    held = devices(Trait(1, "declared"), Trait(2, "declared"))
    costs = costs_of_results(PRICE, held, {BASELINE: one, CANDIDATE: one}, parse_slo("e2e=100s"))
    summary = one[0].measurement.summary
    assert costs.baseline.served.seconds == summary.window_s
    assert costs.baseline.per_million_output_tokens == pytest.approx(1e3 / summary.output_tokens_per_s)
    assert costs.baseline.per_request_within_slo == pytest.approx(1e-3 / summary.requests_per_s)
    assert costs.ratios.per_million_output_tokens == pytest.approx(2.0), "the same tokens on twice the devices"
    assert costs_of_results(PRICE, held, {BASELINE: one, CANDIDATE: one}, None).baseline.per_request_within_slo is None


def test_several_results_of_a_side_are_paid_together():
    one = load([DETAILED])
    held = devices(None, None)
    costs = costs_of_results(PRICE, held, {BASELINE: one, CANDIDATE: one * 3}, None)
    assert costs.candidate.paid == pytest.approx(3 * costs.baseline.paid)
    assert costs.ratios.per_million_output_tokens == pytest.approx(1.0)


def test_page_terminal_and_document_show_costs_only_with_a_price(build):  # noqa: F811
    plain = build(speedup=1.3)
    served = Served(seconds=100.0, output_tokens=1000.0, prompt_tokens=None, met_slo=None, slo=False)
    sides = [cost(parse_price("$2"), Devices(count=n, said_by="<b>"), served) for n in (1, 2)]
    priced = msgspec.structs.replace(plain, cost=compared(*sides))
    console = Console(record=True, width=160, file=io.StringIO())
    show(priced, console)
    text, page = console.export_text(), render_comparison(priced)
    assert "What it costs" not in render_comparison(plain)
    for told in (text, page):
        assert "$55.56" in told
        assert "$111.11" in told
        assert "2.00x" in told
        assert "how many prompt tokens were read is not known" in told
    assert "<b>" not in page.replace("<b>1", "").split("What it costs")[1].split("</section>")[0]
    assert json.loads(msgspec.json.encode(priced))["cost"]["ratios"]["per_million_output_tokens"] == 2.0
