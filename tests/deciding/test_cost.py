"""What both arms of an experiment cost: their own blocks are paid, and the report shows it only where a price was given."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from netgain.cost.price import Devices, Price
from netgain.deciding.decide.cost import costs_at
from netgain.deciding.decide.prepared import settings_tree
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.cost import costs_of_blocks
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.html import render_html
from netgain.deciding.report.terminal import print_summary
from netgain.deciding.report.write import write_report
from netgain.deciding.verdict.store import read_verdict
from netgain.measuring.workload.slo import parse_slo
from tests.deciding.test_report import outcome_of, trial_of

PRICE = Price(per_device_hour=3.6, currency="EUR")  # a thousandth for each second
SLO = parse_slo("e2e=300ms")
ONE = dict.fromkeys((BASELINE, CANDIDATE), Devices(count=1, said_by="as declared"))


@pytest.fixture
def trial(make_record):
    return trial_of(make_record)


def shown(outcome) -> str:
    console = Console(record=True, width=160, file=io.StringIO())
    print_summary(outcome, console)
    return console.export_text()


def test_each_arm_pays_for_its_own_blocks_and_the_faster_one_is_cheaper(trial):
    costs = costs_of_blocks(PRICE, ONE, trial.observations, trial.blocks, SLO)
    for name, cost in ((BASELINE, costs.baseline), (CANDIDATE, costs.candidate)):
        records = [seen.record for seen in trial.observations if seen.arm == name]
        seconds = sum(block.seconds for block in trial.blocks if block.arm == name)
        assert cost.paid == pytest.approx(seconds / 1000.0)
        assert cost.per_million_output_tokens == pytest.approx(seconds * 1e3 / (33 * len(records)))
        assert cost.per_million_tokens == pytest.approx(seconds * 1e3 / (73 * len(records)))
    assert costs.ratios.per_million_output_tokens == pytest.approx(
        costs.candidate.served.seconds / costs.baseline.served.seconds
    )
    assert costs.ratios.per_million_output_tokens < 0.75


def test_only_requests_within_the_slo_are_counted(trial):
    costs = costs_of_blocks(PRICE, ONE, trial.observations, trial.blocks, SLO)
    assert costs.baseline.per_request_within_slo is None
    assert costs.baseline.unknown == ("no request met the SLO",)
    assert costs.candidate.served.met_slo == len([seen for seen in trial.observations if seen.arm == CANDIDATE])
    assert costs.candidate.per_request_within_slo == pytest.approx(
        costs.candidate.paid / costs.candidate.served.met_slo
    )
    assert costs.ratios.per_request_within_slo is None


def test_failures_are_paid_and_bring_nothing(make_record):
    trial = trial_of(make_record, fails=True)
    costs = costs_of_blocks(PRICE, ONE, trial.observations, trial.blocks, SLO)
    assert costs.candidate.paid > 0.0
    assert costs.candidate.per_million_output_tokens is None
    assert costs.candidate.unknown == ("no output token came", "no request met the SLO")


def test_a_token_count_that_is_not_known_leaves_the_cost_unknown(trial):
    first = trial.observations[0]
    silent = msgspec.structs.replace(first, record=msgspec.structs.replace(first.record, output_tokens=None))
    costs = costs_of_blocks(PRICE, ONE, [silent, *trial.observations[1:]], trial.blocks, None)
    assert costs.baseline.per_million_output_tokens is None
    assert costs.candidate.per_million_output_tokens is not None
    assert "no SLO was given" in costs.candidate.unknown


def test_of_a_sweep_the_load_that_is_shown_is_paid_on_as_many_devices_as_are_said(trial, tmp_path):
    settings = Settings(output=tmp_path, price=PRICE, starting=Starting(devices=2))
    shown_load = [seen for seen in trial.observations if seen.group < 3]
    costs = costs_at(settings, shown_load, trial.blocks, None)
    blocks = [block for block in trial.blocks if block.group < 3 and block.arm == BASELINE]
    assert costs.baseline.paid == pytest.approx(2 * sum(block.seconds for block in blocks) / 1000.0)
    assert str(costs.candidate.devices) == "2 devices (from --devices, or the engine's own flags)"
    assert costs_at(Settings(output=tmp_path), shown_load, trial.blocks, None) is None


def test_a_run_goes_on_at_another_price(tmp_path):
    assert settings_tree(Settings(output=tmp_path, price=PRICE)) == settings_tree(Settings(output=tmp_path))


def test_costs_are_in_every_form_of_the_report_where_a_price_was_given(trial, tmp_path):
    costs = costs_of_blocks(PRICE, ONE, trial.observations, trial.blocks, SLO)
    outcome = msgspec.structs.replace(outcome_of(trial), cost=costs)
    write_report(outcome, tmp_path)
    assert read_verdict(tmp_path).cost == costs
    told = json.loads((tmp_path / "decision.json").read_text())["cost"]
    assert told["candidate"]["per_million_output_tokens"] == costs.candidate.per_million_output_tokens
    assert told["baseline"]["per_request_within_slo"] is None
    each = PRICE.written(costs.candidate.per_million_output_tokens)
    assert each.endswith(" EUR")
    for text in (render_html(outcome), shown(outcome), (tmp_path / "report.md").read_text()):
        assert each in text
        assert "3.60 EUR per device-hour" in text
        assert "1 device (as declared)" in text
        assert "no request met the SLO" in text
        assert "an idle device costs the same" in text
        assert "unknown" in text


def test_without_a_price_no_report_speaks_of_costs(trial, tmp_path):
    outcome = outcome_of(trial)
    write_report(outcome, tmp_path)
    assert read_verdict(tmp_path).cost is None
    assert "What it costs" not in render_html(outcome)
    assert "What it costs" not in (tmp_path / "report.md").read_text()
    assert "device-hour" not in shown(outcome)
