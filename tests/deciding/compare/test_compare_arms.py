"""Comparisons of arms that are started for them: real processes, started again, judged across starts, never left behind."""

import json
import socket
import sys

import msgspec
import pytest

from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import SideAsked
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.arms.described import described_from
from netgain.deciding.experiment.arms.port import free_port
from netgain.deciding.experiment.journal import FILE
from netgain.errors import Unavailable, UsageError
from tests.deciding.compare import paced_server
from tests.deciding.compare.paced_arm import paced_arm

pytestmark = pytest.mark.usefixtures("leaves_no_process")


def pinned(port: int, **options: object):
    return msgspec.structs.replace(paced_arm(**options), port=port)


@pytest.mark.slow
def test_started_arms_are_started_again_and_judged_across_starts(settings):
    arms = paced_arm(token_s=0.004, most=6), paced_arm(token_s=0.006, most=6)
    outcome = compare(settings(*arms, starts=6), Silence())
    verdict = outcome.analysis.verdict
    assert (verdict.decision, verdict.finding) == ("reject", "slower")
    assert "across server starts (6 of each arm)" in verdict.scope
    assert {block.start for block in outcome.blocks} == set(range(6))
    assert outcome.sides["baseline"].figures["output_tokens"].gained >= 6 * 12 * 2 * 6
    document = document_of(outcome)
    assert (document.design.starts, document.design.unit) == (6, "start")
    assert {arm.command[:2] for arm in document.arms} == {(sys.executable, paced_server.__file__)}
    assert [arm.url for arm in document.arms] == [None, None]
    assert document.deploy[0].advises == "baseline"


@pytest.mark.slow
def test_the_quick_form_has_two_starts_and_a_control_is_a_second_baseline(settings):
    arms = pinned(free_port(), token_s=0.002), paced_arm(token_s=0.002)
    outcome = compare(settings(*arms, control=True), Silence())
    assert {block.start for block in outcome.blocks} == {0, 1}
    assert {arm.name for arm in outcome.arms} == {"baseline", "candidate", "control"}
    assert "within these starts" in outcome.analysis.verdict.scope
    assert outcome.analysis.verdict.decision != "adopt"
    assert any("devices" in caveat and "--baseline-is" in caveat for caveat in outcome.caveats), "nobody declared them"


class Stops(Silence):
    """Ends the run as a crash would, after so many blocks."""

    def __init__(self, after: int) -> None:
        self.left = after

    def step(self, text: str = "") -> None:
        self.left -= 1
        if not self.left:
            raise Unavailable("the lab lost power")


def test_a_run_that_ended_goes_on_with_the_same_settings_only(settings, tmp_path):
    arms = paced_arm(token_s=0.002, most=4), paced_arm(token_s=0.002, most=4)
    with pytest.raises(Unavailable, match="lost power"):
        compare(settings(*arms), Stops(after=5))
    with pytest.raises(UsageError, match="resume it"):
        compare(settings(*arms), Silence())
    with pytest.raises(UsageError, match="seed was 0 and is 7 now"):
        compare(settings(*arms, resume=True, seed=7), Silence())
    kept = (tmp_path / "out" / FILE).read_bytes().splitlines()
    outcome = compare(settings(*arms, resume=True), Silence())
    now = (tmp_path / "out" / FILE).read_bytes().splitlines()
    assert now[: len(kept)] == kept
    assert [block.index for block in outcome.blocks] == list(range(48))
    (told,) = [check for check in outcome.analysis.verdict.checks if check.name == "resumed"]
    assert "several processes" in told.says
    outputs = [row for row in outcome.counted if row.figure == "output_tokens"]
    assert [row.agree for row in outputs] == [True, True], "of the blocks since it went on"
    assert 0 < sum(row.client for row in outputs) < sum(block.output_tokens for block in outcome.blocks)


def test_a_running_server_and_an_arm_are_compared_within_one_start(settings):
    port = free_port()
    with paced_server.paced_server(token_s=0.004) as url:
        with pytest.raises(UsageError, match="--starts is for two arms"):
            settings(url, paced_arm(), starts=2)
        outcome = compare(settings(url, pinned(port, token_s=0.002)), Silence())
    assert {block.start for block in outcome.blocks} == {0}
    assert outcome.analysis.verdict.finding == "faster"
    assert outcome.sides["baseline"].command is None
    assert outcome.sides["candidate"].command[2:4] == ("--port", str(port))


def test_an_arm_that_does_not_start_is_said_with_its_log(settings):
    broken = paced_arm(token_s="soon")
    with pytest.raises(Unavailable, match=r"candidate server ended with code 2[\s\S]*invalid float value"):
        compare(settings(paced_arm(), broken), Silence())


def test_arms_that_say_different_things_of_themselves_are_refused_after_they_were_asked(settings):
    card = json.dumps({"weights": "ab" * 32, "dtype": "bf16", "memory_bytes": 2**30})
    other = json.dumps({"weights": "ab" * 32, "dtype": "q4_1", "memory_bytes": 2**30})
    arms = paced_arm(owner="netgain", card=card), paced_arm(owner="netgain", card=other)
    with pytest.raises(UsageError, match=r"dtype \(bf16 against q4_1\)"):
        compare(settings(*arms), Silence())


def test_a_pinned_port_that_is_taken_is_refused_before_anything_is_started(settings, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} of the candidate arm cannot be used") as refused:
            compare(settings(paced_arm(), pinned(port)), Silence())
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_arms_behind_a_key_are_compared_with_it_and_it_is_kept_nowhere(settings, tmp_path):
    """Hooked arms are asked for their health, their counters and their settings as well as for answers."""
    with paced_server.paced_server(key="s3cret") as first, paced_server.paced_server(key="s3cret") as second:
        sides = [
            SideAsked(sources=("arm",), arm=hooked(url), headers={"Authorization": "Bearer s3cret"})
            for url in (first, second)
        ]
        outcome = compare(settings(*sides, starts=1), Silence())
        assert {row.arm for row in outcome.counted if row.agree} == {"baseline", "candidate"}
        assert not any(reason for reason in outcome.handoffs_unknown.values() if "not read" in reason)
        with pytest.raises(UsageError, match=r"baseline server wants a key: .*--header NAME=VALUE"):
            compare(settings(hooked(first), hooked(second), output=tmp_path / "again"), Silence())
    for kept in (tmp_path / "out").rglob("*"):
        assert not kept.is_file() or b"s3cret" not in kept.read_bytes(), kept


def hooked(url: str):
    """What runs already, as an arm that hooks start and stop."""
    return described_from({"engine": "vllm", "url": url, "start": "true", "stop": "true"}, "arm.yaml")
