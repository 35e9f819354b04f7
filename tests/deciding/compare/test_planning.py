"""How much is measured: as many starts as asked for, less within a budget, and blocks that hold a queue at a rate."""

import pytest

from netgain.deciding.compare.planning import plan
from netgain.deciding.compare.settings import SideAsked
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.arms.described import Described, described_by_command
from netgain.deciding.experiment.arms.starting import Starting
from netgain.errors import UsageError
from netgain.measuring.record.as_workload import load_traffic

ARMS = Described(), described_by_command("netgain serve default --speculation ngram")


@pytest.fixture
def planned(settings):
    def planned(*sides, start_s=1.0, repeatable=True, request_s=0.1, narrator=None, devices=(None, None), **fields):
        asked = settings(*sides, **fields)
        told = dict(zip(("baseline", "candidate"), devices, strict=True))
        return plan(asked, load_traffic(asked.workload), request_s, start_s, repeatable, narrator or Silence(), told)

    return planned


def test_two_arms_have_starts_and_what_runs_already_has_one(planned):
    assert planned(*ARMS).design.starts == 2
    full = planned(*ARMS, quick=False).design
    assert (full.fewest.starts, full.starts, full.enough_after) == (6, 10, 6)
    assert planned(*ARMS, quick=False, starts=6).design.starts == 6
    assert planned("http://a:1", "http://b:1").design.starts == 1
    assert planned("http://a:1", ARMS[0]).design.starts == 1


@pytest.mark.parametrize("starts", [1, 2, 3, 50])
def test_every_start_holds_groups_and_together_enough_to_decide(planned, starts):
    design = planned(*ARMS, starts=starts).design
    held = [design.start_of(group) for group in range(len(design.groups))]
    assert set(held) == set(range(starts))
    assert len(held) >= 6


def test_a_budget_makes_it_smaller_and_says_what_that_loses(planned):
    """Two arms, six starts of 10 s each, and little to measure: 240 device-seconds of starting alone."""
    whole = planned(*ARMS, starts=6, start_s=10.0, budget_s=500.0)
    assert (whole.design.starts, whole.lost) == (6, ())
    less = planned(*ARMS, starts=6, start_s=10.0, budget_s=150.0)
    assert 1 <= less.design.starts < 6
    assert "Budget:" in less.lost[0]
    with pytest.raises(UsageError, match="is too small"):
        planned(*ARMS, starts=6, start_s=10.0, budget_s=20.0)


def test_what_a_budget_takes_from_running_servers_is_said(planned):
    sides = "http://a:1", "http://b:1"
    assert planned(*sides, quick=False).lost == ()
    assert planned(*sides, quick=False, request_s=1.0, budget_s=1e6).lost == ()
    (said,) = planned(*sides, quick=False, request_s=1.0, budget_s=100.0).lost
    assert "in place of 24 of 2, so intervals are wider" in said


def test_a_budget_that_no_verdict_fits_is_said_to_be_exceeded(planned):
    taken, exceeded = planned("http://a:1", "http://b:1", quick=False, request_s=60.0, budget_s=60.0).lost
    assert "6 groups of 1 prompt in place of 24 of 2" in taken
    assert "expected to take 24.0 min, which is more than the 1 asked for" in exceeded


def test_devices_of_the_larger_arm_are_what_the_budget_counts(planned):
    four = Described(engine="vllm", model="m", starting=Starting(devices=4))
    asked = {"starts": 6, "start_s": 10.0, "budget_s": 500.0}
    assert planned(ARMS[0], four, **asked).design.starts < planned(*ARMS, **asked).design.starts


def test_a_block_at_a_rate_holds_several_times_what_is_in_flight(planned):
    sides = "http://a:1", "http://b:1"
    assert {len(group) for group in planned(*sides, rate_per_s=1.0).design.groups} == {8}
    busy = planned(*sides, rate_per_s=50.0)  # 5 in flight on average
    assert {len(group) for group in busy.design.groups} == {20}
    assert busy.design.rate_per_s == 50.0


def test_where_a_cache_would_find_a_prompt_again_no_block_is_repeated(planned):
    design = planned(*ARMS, repeatable=False).design
    assert not design.mirrored
    assert design.order(0) == ("baseline", "candidate")


def test_headers_are_not_kept_since_they_may_hold_keys(planned):
    secret = SideAsked(sources=("http://a:1",), headers={"Authorization": "Bearer secret"})
    assert "secret" not in str(planned(secret, ARMS[0]).settings)


def test_secrets_of_an_arms_command_line_are_not_kept(planned):
    """Variables before the command, and the options of servers that ask for keys."""
    text = "HF_TOKEN=hf_one vllm serve m --api-key two --max-num-seqs 8"
    arm = SideAsked(sources=(text,), arm=described_by_command(text))
    tree = planned(arm, ARMS[0]).settings
    assert "hf_one" not in str(tree)
    assert "two" not in str(tree["baseline"])
    assert "--max-num-seqs" in str(tree["baseline"])


class Heard(Silence):
    """Keeps what was found."""

    def __init__(self):
        self.said = []

    def found(self, text):
        self.said.append(text)


@pytest.mark.parametrize(
    ("devices", "control", "held"),
    [
        ((4, 2), False, "2 arms x 4 devices x"),
        ((None, None), False, "2 arms x 1 device (assumed) x"),
        ((4, None), False, "2 arms x 4 devices (assumed) x"),
        ((4, 4), True, "2 arms x 4 devices x"),
    ],
)
def test_device_hours_of_running_servers_are_told_before(planned, devices, control, held):
    """24 groups of 2 prompts, each asked twice of either server for a second: 3.2 minutes, and 0.5 for a control."""
    narrator = Heard()
    form = {"quick": False, "request_s": 1.0, "control": control}
    planned("http://a:1", "http://b:1", narrator=narrator, devices=devices, **form)
    (said,) = narrator.said
    assert held in said
    minutes = float(said.rpartition(" x ")[2].removesuffix(" min)"))
    assert minutes == pytest.approx(3.7 if control else 3.2, abs=0.05)
    hours = 2 * max(known or 1 for known in devices) * minutes / 60.0
    assert float(said.split()[3]) == pytest.approx(hours, rel=0.05)


def test_one_server_that_is_compared_with_itself_holds_its_devices_once(planned):
    narrator = Heard()
    planned("http://a:1", "http://a:1", narrator=narrator, devices=(8, 8), control=True)
    assert "(1 arm x 8 devices x" in narrator.said[0]
