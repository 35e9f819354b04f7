"""A whole experiment against two scripted servers: order, salts, warm-up, and a planted difference that is found."""

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator

import msgspec
import psutil
import pytest
from aiohttp import web

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.arm import Observed
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Asking, conduct
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.errors import UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item
from tests.waiting import PATIENCE_S

TOKENS = 8


class ScriptedArm:
    """A server in this process that answers every prompt with the same tokens, `token_s` apart, and keeps what it was asked."""

    def __init__(self, name: str, token_s: float) -> None:
        self.name = name
        self.answered = 0
        self.tokens = 0
        self.token_s = token_s
        self.asked: list[dict] = []
        self.command = ("scripted", name)
        self.headers: dict[str, str] = {}
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def ready(self, timeout_s: float) -> None:
        return

    async def reset(self) -> str:
        return "scripted"

    def observe(self) -> Observed | None:
        return Observed(cpu_s=0.0, resident_bytes=1, processes=1)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        received = time.monotonic()
        for n in range(
            min(TOKENS, body["max_tokens"])
        ):  # by absolute times: what delays a token does not delay those after
            await asyncio.sleep(max(0.0, received + (n + 1) * self.token_s - time.monotonic()))
            usage = {"prompt_tokens": 4, "completion_tokens": n + 1, "total_tokens": n + 5}
            await self._say(response, {"choices": [{"index": 0, "text": "a", "finish_reason": None}], "usage": usage})
        self.answered += 1
        self.tokens += min(TOKENS, body["max_tokens"])
        ended = time.monotonic()
        record = {
            "request_id": "r",
            "choice": 0,
            "model": "m",
            "received_s": received,
            "first_token_s": received + self.token_s,
            "finished_s": ended,
            "finish_reason": "length",
            "prompt_tokens": 4,
            "cached_tokens": 0,
            "output_tokens": TOKENS,
            "preemptions": 0,
            "stages": {"prefill": self.token_s, "decode": ended - received - self.token_s},
            "ttft_stages": {"prefill": self.token_s},
            "drafts": {},
            "output_ids": list(range(TOKENS)),
        }
        finish = {"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "netgain": record}
        await self._say(response, finish)
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _metrics(self, request: web.Request) -> web.Response:
        counts = {
            "vllm:request_success_total": self.answered,
            "vllm:generation_tokens_total": self.tokens,
            "vllm:prompt_tokens_total": 4 * self.answered,
        }
        lines = [line for name, value in counts.items() for line in (f"# TYPE {name} counter", f"{name} {value}")]
        return web.Response(text="\n".join(lines) + "\n")

    async def _say(self, response: web.StreamResponse, chunk: dict) -> None:
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


@pytest.fixture
async def arms() -> AsyncIterator[dict[str, ScriptedArm]]:
    both = {BASELINE: ScriptedArm(BASELINE, 0.012), CANDIDATE: ScriptedArm(CANDIDATE, 0.006)}
    for arm in both.values():
        await arm.start()
    yield both
    for arm in both.values():
        await arm.stop()


def design(groups=6, size=2):
    items = [Item(id=f"i{n}", category="c", max_tokens=TOKENS, prompt=f"p{n}") for n in range(groups * size)]
    return Design(groups=grouped(items, groups, size), concurrency=1)


async def test_a_planted_difference_is_adopted_from_real_timings(arms):
    asking = Asking(model="m", options=Options(server_record=True, server_tokens=True))
    for attempt in range(5):
        trial = await conduct(arms, design(), asking, f"salt-{attempt}")
        analysis = analyse(trial.observations, Terms(promises_identity=True), check_trial(trial))
        if not analysis.verdict.void:  # where other work delays the client, the run is void, as it must be
            break
    assert analysis.verdict.decision == "adopt", analysis.verdict
    low, high = analysis.e2e_median.interval
    assert low < 2.0 < high or 1.5 < analysis.e2e_median.ratio < 2.5
    for block in trial.blocks:
        times = [seen.record.e2e_s for seen in trial.observations if seen.block == block.index]
        assert block.e2e_median_s == pytest.approx(statistics.median(times))
    assert {block.concurrency for block in trial.blocks} == {design().concurrency}
    assert analysis.waterfall.net_ns == sum(analysis.waterfall.saved_ns.values()) + analysis.waterfall.residual_ns


async def test_servers_are_counted_over_the_measured_blocks_of_all_starts_and_nothing_else(arms):
    plan = msgspec.structs.replace(design(groups=4), starts=2)

    async def restart(start: int) -> None:
        for arm in arms.values():
            arm.answered = arm.tokens = 0  # counters begin again with a process

    asking = Asking(model="m", options=Options(server_tokens=True))
    trial = await conduct(arms, plan, asking, "salt", restart=restart, counting=(BASELINE, CANDIDATE))
    found = {(row.arm, row.figure): (row.server, row.client, row.agree) for row in trial.counted}
    for name in (BASELINE, CANDIDATE):
        assert found[name, "requests"] == (16, 16, True)
        assert found[name, "prompt_tokens"] == (64, 64, True)
        assert found[name, "output_tokens"] == (16 * TOKENS, 16 * TOKENS, True)
    assert {check.name: check.ok for check in check_trial(trial)}["counters"] is True


async def test_blocks_mirror_each_other_and_no_arm_finds_what_another_left(arms):
    """Arms may keep what they computed in one place: a folder, a bucket, a store beside them, the same server asked twice. The
    one that is asked first would pay for what the other loads."""
    plan = design(groups=2)
    seen = []
    trial = await conduct(
        arms,
        plan,
        Asking(model="m", options=Options(server_record=True)),
        "salt",
        lambda block, total: seen.append((block.arm, total)),
    )
    assert [block.arm for block in trial.blocks] == [*plan.order(0), *plan.order(1)]
    assert [arm for arm, _ in seen] == [block.arm for block in trial.blocks]
    assert {total for _, total in seen} == {8}
    measured = {
        name: [(body["prompt"], body["cache_salt"]) for body in arm.asked if "warm-up" not in body["cache_salt"]]
        for name, arm in arms.items()
    }
    assert sorted(prompt for prompt, _ in measured[BASELINE]) == sorted(prompt for prompt, _ in measured[CANDIDATE])
    assert len(set(measured[BASELINE])) == len(measured[BASELINE])  # no prompt twice under one salt
    salts = {name: {body["cache_salt"] for body in arm.asked} for name, arm in arms.items()}
    assert not salts[BASELINE] & salts[CANDIDATE]
    warm = [body for body in arms[BASELINE].asked if "warm-up" in body["cache_salt"]]
    assert warm
    assert len(trial.observations) == 2 * len(measured[BASELINE])


async def test_where_reuse_is_tested_a_salt_lasts_as_long_as_a_start_and_no_prompt_meets_itself(arms):
    """A technique that gains by what earlier requests left behind would find nothing if every block began cold."""
    plan = msgspec.structs.replace(design(groups=6, size=1), starts=2)
    plan = msgspec.structs.replace(plan, groups=(*plan.groups[:2], plan.groups[0], *plan.groups[3:]))

    async def restart(start: int) -> None:
        pass

    await conduct(arms, plan, Asking(model="m", reuses=True), "salt", restart=restart)
    for arm in arms.values():
        measured = [(body["prompt"], body["cache_salt"]) for body in arm.asked if "warm-up" not in body["cache_salt"]]
        assert len({salt for _, salt in measured}) == 6, "two repeats of: start 0, its prompt that comes again, start 1"
        assert len(set(measured)) == len(measured) == 12


async def test_a_server_without_salts_is_asked_each_repeat_in_other_words_and_reset_between_none(arms):
    """Erasing its slots would not reach what it keeps in memory, where the second repeat would find the first."""
    plan = design(groups=4, size=1)
    resets = []
    for name, arm in arms.items():
        arm.reset = lambda name=name: resets.append(name)
    trial = await conduct(arms, plan, Asking(model="m", reuses=True, salted=False), "salt")
    asked = {
        name: [body["prompt"] for body in arm.asked if "warms up" not in body["prompt"]] for name, arm in arms.items()
    }
    assert resets == []
    assert sorted(asked[BASELINE]) == sorted(asked[CANDIDATE])
    assert len(set(asked[BASELINE])) == 8, "no prompt is asked twice in the same words"
    marks = {prompt.partition("] ")[0] for prompt in asked[BASELINE]}
    assert len(marks) == 2, "one for each repeat, so that prompts share what they have in common"
    assert {seen.text for seen in trial.observations} == {0, 1}


async def test_each_start_has_groups_and_a_warm_up_of_its_own(arms):
    """The servers are started again between starts, never before the first or within one."""
    plan = msgspec.structs.replace(design(groups=4, size=1), starts=2)
    began = []

    async def restart(start):
        began.append((start, [len(arm.asked) for arm in arms.values()]))

    trial = await conduct(arms, plan, Asking(model="m", options=Options(server_record=True)), "salt", restart=restart)
    assert [(seen.start, seen.group) for seen in trial.observations[::4]] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert [block.start for block in trial.blocks] == [0] * 8 + [1] * 8
    assert began == [(1, [5, 5])], "after one warm-up and four requests of each arm"
    assert all(sum("warm-up" in body["cache_salt"] for body in arm.asked) == 2 for arm in arms.values())


@pytest.mark.parametrize("wanted", [2, 4])
async def test_a_growing_design_ends_when_enough_starts_were_measured(arms, wanted):
    """It is asked once, after the fewest starts, with all that they showed; no server is started that is not needed."""
    plan = msgspec.structs.replace(design(groups=4, size=1), starts=4, enough_after=2)
    began, asked = [], []

    async def restart(start):
        began.append(start)

    def enough(observations):
        asked.append({seen.start for seen in observations})
        return wanted

    way = Asking(model="m", options=Options(server_record=True))
    trial = await conduct(arms, plan, way, "salt", restart=restart, enough=enough)
    assert asked == [{0, 1}]
    assert began == list(range(1, wanted))
    assert {block.start for block in trial.blocks} == set(range(wanted))
    assert len(trial.blocks) == plan.up_to(wanted).blocks


async def test_several_starts_without_a_way_to_start_again_are_refused(arms):
    with pytest.raises(UsageError, match="2 starts need servers that can be started again"):
        await conduct(
            arms, msgspec.structs.replace(design(groups=2), starts=2), Asking(model="m", options=Options()), "salt"
        )


async def test_a_dead_candidate_is_rejected_for_its_failures(arms):
    await arms[CANDIDATE].stop()
    trial = await conduct(
        arms, design(), Asking(model="m", options=Options(server_record=True, server_tokens=True)), "salt"
    )
    verdict = analyse(trial.observations, Terms(promises_identity=True), check_trial(trial)).verdict
    assert verdict.decision == "reject"
    assert "fail" in verdict.reasons[0]
    assert {block.e2e_median_s for block in trial.blocks if block.arm == CANDIDATE} == {None}, "the median failed"
    assert "%" not in verdict.headline.partition(":")[0], "a change of time to infinity is no percentage"


async def test_a_dead_baseline_proves_nothing(arms):
    """Beside it the candidate looked 125003372031554.20x as fast."""
    await arms[BASELINE].stop()
    trial = await conduct(arms, design(), Asking(model="m", options=Options(server_record=True)), "salt")
    verdict = analyse(trial.observations, Terms(promises_identity=False), check_trial(trial)).verdict
    assert verdict.void
    assert verdict.decision == "inconclusive"
    assert "to the baseline failed, so there is nothing to compare with" in verdict.headline


async def test_cancelling_leaves_no_request_behind(arms):
    running = asyncio.create_task(
        conduct(arms, design(), Asking(model="m", options=Options(server_record=True)), "salt")
    )
    ports = {int(arm.url.rsplit(":", 1)[1]) for arm in arms.values()}

    def held() -> list[object]:
        return [
            link
            for link in psutil.Process().net_connections(kind="tcp")
            if link.status == psutil.CONN_ESTABLISHED and link.raddr and link.raddr.port in ports
        ]

    async with asyncio.timeout(PATIENCE_S):
        while not held():
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(PATIENCE_S):
        while held():
            await asyncio.sleep(0.01)


def test_at_a_rate_all_blocks_of_a_group_share_one_schedule():
    items = [Item(id=f"i{n}", category="c", max_tokens=TOKENS, prompt=f"p{n}") for n in range(4)]
    design = Design(groups=grouped(items, 2, 2), concurrency=1, rate_per_s=5.0, seed=1)
    first, second = (design.arrivals(group).offsets_s(4) for group in (0, 1))
    assert first == design.arrivals(0).offsets_s(4)
    assert first != second
    assert first != msgspec.structs.replace(design, seed=2).arrivals(0).offsets_s(4)
    assert msgspec.structs.replace(design, rate_per_s=None).arrivals(0) == Closed(1)


@pytest.mark.parametrize("groups_done", [0, 1])
async def test_an_interruption_leaves_whole_groups_where_it_is_to(arms, groups_done):
    blocks = 0

    def on_block(block, total):
        nonlocal blocks
        blocks += 1
        if blocks == 4 * groups_done + 2:
            task.cancel()

    asking = Asking(model="m", options=Options(server_record=True))
    task = asyncio.create_task(conduct(arms, design(), asking, "salt", on_block, keep_interrupted=True))
    if groups_done == 0:
        with pytest.raises(asyncio.CancelledError):
            await task
        return
    trial = await task
    assert trial.stopped
    assert [block.group for block in trial.blocks] == [0, 0, 0, 0]
    assert {seen.group for seen in trial.observations} == {0}
