"""From which load on is which side faster? A sign flip that was planted is found, told everywhere, and gone on with."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from netgain.cli.main import run
from netgain.deciding.compare.outcome import Comparison
from netgain.deciding.compare.run import compare
from netgain.deciding.compare.show import show
from netgain.deciding.compare.write import JSON, write_comparison
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.journal import FILE
from netgain.deciding.verdict.store import read_verdict
from netgain.errors import UsageError
from tests.deciding.compare.paced_arm import paced_arm
from tests.deciding.compare.paced_server import paced_server

LOADS = (1, 8)
EVEN = {"token_s": 0.02, "most": 4}
CROWDED = {"token_s": 0.01, "crowd_s": 0.006, "most": 4}  # half the time alone, more than twice among eight


class Cut(Exception):
    """The run ends here, as by a crash."""


class CutAfter(Silence):
    def __init__(self, blocks):
        self.left = blocks

    def step(self, text=""):
        self.left -= text.endswith(" s")
        if self.left == 0:
            raise Cut


class Heard(Silence):
    def __init__(self):
        self.said = []

    def phase(self, text, steps=None):
        self.said.append(text)

    def found(self, text):
        self.said.append(text)


def flips(outcome):
    """The planted flip, by what was measured; a machine that is too busy may void the verdict, not the curve."""
    alone, crowd = outcome.sweep.points
    assert (alone.concurrency, crowd.concurrency) == LOADS
    assert alone.effect.low > 1.0
    assert crowd.effect.high < 1.0
    assert outcome.sweep.each == pytest.approx(0.975), "two intervals hold together"
    crossing = outcome.sweep.crossover
    assert (crossing.turn, crossing.below, crossing.above) == ("ends", *LOADS)
    assert 1.0 < crossing.at < 8.0
    assert crowd.decision == "reject" or outcome.analysis.verdict.void


def test_the_load_at_which_a_gain_ends_is_found_between_two_urls(settings, tmp_path):
    heard = Heard()
    with paced_server(**EVEN) as before, paced_server(**CROWDED) as after:
        outcome = compare(settings(before, after, loads=LOADS), heard)
    flips(outcome)
    assert any("device-hours" in said for said in heard.said[: heard.said.index("judging")])
    assert any(said.startswith("comparing: 12 groups of 2 to 16 prompts") for said in heard.said)
    assert outcome.asked.loads == LOADS
    assert {arm.requests for arm in outcome.arms} == {6 * 2 * 2}, "figures below the curve are of the lowest load"
    page = write_comparison(outcome, tmp_path / "out").read_text()
    assert "Up to which load does it pay?" in page
    assert page.count('class="dot-') >= 2
    assert "Predicted" not in page, "nothing was predicted"
    text = (tmp_path / "out" / "report.md").read_text()
    assert "### Up to which load does it pay?" in text
    assert outcome.sweep.crossover_says.partition(" (")[0] in text
    assert msgspec.json.decode((tmp_path / "out" / JSON).read_bytes(), type=Comparison).sweep == outcome.sweep
    document = read_verdict(tmp_path / "out")
    assert document.sweep == outcome.sweep
    assert document.load.concurrency == LOADS
    console = Console(file=io.StringIO(), width=160)
    show(outcome, console)
    assert "interval (95% together)" in console.file.getvalue()


def test_arms_that_are_started_share_their_starts_over_the_loads_and_a_crash_loses_no_block(
    settings, tmp_path, leaves_no_process
):
    asked = settings(paced_arm(**EVEN), paced_arm(**CROWDED), loads=LOADS)
    with pytest.raises(Cut):
        compare(asked, CutAfter(10))
    kept = len((tmp_path / "out" / FILE).read_text().splitlines())
    outcome = compare(settings(paced_arm(**EVEN), paced_arm(**CROWDED), loads=LOADS, resume=True), Silence())
    flips(outcome)
    assert {block.start for block in outcome.blocks} == {0, 1}
    assert len((tmp_path / "out" / FILE).read_text().splitlines()) > kept
    assert len(outcome.blocks) == 2 * 2 * 3 * 4, "starts, loads, groups of each in a start, and A B B A"
    with pytest.raises(UsageError, match="loads"):
        compare(settings(paced_arm(**EVEN), paced_arm(**CROWDED), loads=(1, 4), resume=True), Silence())


def test_a_budget_takes_groups_from_all_loads_and_is_told(settings, tmp_path):
    with paced_server(**EVEN) as before, paced_server(**EVEN) as after:
        asked = settings(before, after, loads=(1, 2), quick=False, budget_s=1.0)
        outcome = compare(asked, Silence())
    budget = outcome.budget
    assert budget.planned.groups == 12 < budget.whole.groups == 24
    assert any("12 groups over all loads in place of 24" in said for said in outcome.cannot_show)
    assert budget.says


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"loads": (2, 1), "concurrency": 2}, "each once, in ascending order"),
        ({"loads": (1, 2), "kind": "scaling"}, "throughput at one load"),
        ({"loads": (1, 2), "rate_per_s": 3.0}, "closed loop"),
        ({"loads": (1, 64)}, "24 prompts cannot keep 64 requests in flight"),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(settings, fields, told):
    with pytest.raises(UsageError, match=told):
        compare(settings("http://127.0.0.1:9", "http://127.0.0.1:10", **fields), Silence())


def test_the_gate_fails_where_any_load_is_rejected(settings, tmp_path):
    workload = str(tmp_path / "prompts.jsonl")
    settings("http://a", "http://b")  # writes the prompts
    words = [
        "--quick",
        "--workload",
        workload,
        "--concurrency",
        "8,1",
        "--output",
        str(tmp_path / "cli"),
        "--gate",
        "--json",
    ]
    with paced_server(**EVEN) as before, paced_server(**CROWDED) as after:
        code = run(["compare", "--baseline", before, "--candidate", after, *words])
    told = json.loads((tmp_path / "cli" / JSON).read_text())
    assert [point["concurrency"] for point in told["sweep"]["points"]] == [1, 8]
    rejected = any(point["decision"] == "reject" for point in told["sweep"]["points"])
    void = told["analysis"]["verdict"]["void"]
    assert code == (3 if void else 4 if rejected else 0)
    assert void or rejected
