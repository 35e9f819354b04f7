"""The curve is measured once, kept, and measured again only while nothing else is to be done, without harm to any request."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.cost.step_cost_store import StepCostStore
from netgain.errors import ExecutorFailed
from netgain.ledger.clock import VirtualClock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.batch import Batch, StepResult
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.step_curve import RETRY_S, SETTLED_S, StepCurve, Upkeep, step_limits
from netgain.serving.runtime.simulated_executor import SimulatedExecutor
from tests.serving.engine.recall_executor import RecallExecutor, continuation

VOCAB, BLOCK = 23, 4
SUBJECT = {"machine": "m", "weights": "w"}
UPKEEP = Upkeep(idle_s=5.0, max_age_s=1000.0, margin=0.25)
PATIENT = msgspec.structs.replace(UPKEEP, max_age_s=1e6)


def truth(scale: float = 1.0, measured_at: float | None = None) -> StepCost:
    return StepCost(
        points=tuple(
            StepPoint(batch=batch, tokens=tokens, context=context, seconds=scale * (0.008 + 0.001 * batch * tokens))
            for batch in (1, 16)
            for tokens in (1, 17, 64)
            for context in (0, 200)
        ),
        subject=SUBJECT,
        measured_at=measured_at,
    )


class Counted:
    """An executor that counts, takes a moment, and fails while `broken`."""

    def __init__(self, inner: RecallExecutor | SimulatedExecutor, clock: VirtualClock) -> None:
        self.inner, self.clock, self.steps, self.broken = inner, clock, 0, False

    async def execute(self, batch: Batch) -> StepResult:
        self.steps += 1
        if self.broken:
            raise ExecutorFailed("the device fell off the bus")
        await self.clock.sleep(1e-9)
        return await self.inner.execute(batch)

    def close(self) -> None:
        self.inner.close()


class Bench:
    """An engine on virtual time. `date` is the calendar's seconds; the executor is simulated, or recalls what KV holds."""

    def __init__(
        self,
        folder: Path | None,
        *,
        recall: bool = False,
        blocks: int = 200,
        scale: float = 1.0,
        date: float = 10_000.0,
        upkeep: Upkeep | None = UPKEEP,
    ) -> None:
        self.clock, self.date, self.collector = VirtualClock(), date, Collector()
        self.scheduler = Scheduler(
            BlockPool(blocks),
            self.clock,
            block_tokens=BLOCK,
            max_batch_tokens=64,
            max_running=8,
            max_waiting=9,
            max_length=200,
            prefix_caching=True,
        )
        self.executor = Counted(
            RecallExecutor(blocks, BLOCK, VOCAB) if recall else SimulatedExecutor(self.clock, truth(scale)),
            self.clock,
        )
        self.curve = StepCurve(
            self.executor,
            self.scheduler.pool,
            self.clock,
            step_limits(self.scheduler),
            SUBJECT,
            store=None if folder is None else StepCostStore(folder),
            upkeep=upkeep,
            today=lambda: self.date + self.clock.now(),
        )
        self.engine = Engine(
            executor=self.executor,
            scheduler=self.scheduler,
            namespace=Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n"),
            clock=self.clock,
            collector=self.collector,
            vocab_size=VOCAB,
            eos_ids=frozenset(),
            step_curve=self.curve,
        )

    def run(self, work):
        async def main():
            return await self.clock.run(asyncio.ensure_future(work))

        return asyncio.run(main())

    async def ask(self, name: str, prompt: list[int], tokens: int) -> list[int]:
        sampling = SamplingParams(max_tokens=tokens, temperature=0.0)
        self.engine.submit(Request(id=name, prompt=tuple(prompt), sampling=sampling))
        out: list[int] = []
        while self.engine.has_work:
            for output in await self.engine.step():
                out += output.tokens
            self.engine.check()
        return out

    async def idle(self, most: int = 100_000) -> int:
        """Keep up as an idle engine process does, until nothing is due at once; returns the steps it took."""
        before = self.executor.steps
        for _ in range(most):
            if self.engine.upkeep_in_s(UPKEEP.idle_s) != 0.0:
                break
            await self.engine.keep_up()
        self.scheduler.pool.check()
        return self.executor.steps - before


def test_the_next_start_uses_the_kept_curve_and_measures_nothing(tmp_path: Path) -> None:
    first = Bench(tmp_path)
    assert first.curve.cost is None
    assert first.engine.upkeep_in_s(0.0) == UPKEEP.idle_s, "not before it has been idle"
    assert first.run(first.idle()) > 100
    assert first.curve.cached is False
    assert first.curve.cost is not None
    for point in first.curve.cost.points:
        assert point.seconds == pytest.approx(
            truth().verify(point.batch, point.tokens, point.context).seconds, rel=1e-6
        )
    second = Bench(tmp_path)
    assert second.curve.cost == first.curve.cost
    assert second.curve.gauges()["step_cost_cached"] == 1.0
    assert second.run(second.idle()) == 0
    due_s = second.engine.upkeep_in_s(UPKEEP.idle_s)
    assert due_s is not None
    assert due_s > 0


def test_own_cost_and_stall_are_split_from_the_first_request_on(tmp_path: Path) -> None:
    StepCostStore(tmp_path).save(truth(measured_at=10_000.0))
    bench = Bench(tmp_path)

    async def work():
        await bench.ask("r", [1, 2, 3], 5)
        return bench.collector.steps[-1].shares[0].own_s

    assert bench.run(work()) == pytest.approx(0.009)


def test_a_background_step_is_one_step_of_the_executor(tmp_path: Path) -> None:
    """What a request that arrives meanwhile has to wait for at most."""
    bench = Bench(tmp_path)

    async def work():
        while bench.engine.upkeep_in_s(UPKEEP.idle_s) == 0.0:
            before = bench.executor.steps
            await bench.engine.keep_up()
            assert bench.executor.steps - before <= 1
            assert bench.scheduler.pool.available == 200, "nothing is held between steps"

    bench.run(work())


def test_a_request_amid_a_measurement_gets_its_own_text_and_its_cached_prefix(tmp_path: Path) -> None:
    bench = Bench(tmp_path, recall=True, blocks=64)
    prompt = [5, 3, 9, 1] * 12

    async def work():
        assert await bench.ask("before", prompt, 9) == list(continuation(prompt, 9, VOCAB))
        hits = bench.engine.stats().cached_tokens
        for turn in range(40):
            assert await bench.idle(most=7) == 7, "the measurement goes on where it was"
            assert await bench.ask(f"r{turn}", prompt, 9) == list(continuation(prompt, 9, VOCAB))
            now = bench.engine.stats().cached_tokens
            assert now - hits >= len(prompt) - BLOCK, "its prefix was still there"
            hits = now

    bench.run(work())


def test_nothing_is_done_while_requests_run() -> None:
    bench = Bench(None)

    async def work():
        bench.engine.submit(Request(id="r", prompt=(1, 2, 3), sampling=SamplingParams(max_tokens=5, temperature=0.0)))
        await bench.engine.keep_up()
        return bench.executor.steps

    assert bench.run(work()) == 0


def test_a_full_cache_loses_few_blocks_to_a_measurement(tmp_path: Path) -> None:
    bench = Bench(tmp_path, blocks=160)

    async def work():
        for name in range(9):
            await bench.ask(f"r{name}", [name, *range(20)] * 4, 20)
        assert bench.scheduler.pool.free < 20
        evicted = bench.scheduler.pool.evictions
        assert await bench.idle() > 50
        assert bench.scheduler.pool.evictions - evicted <= 160 // 8
        assert bench.curve.cost is not None

    bench.run(work())


def test_an_old_curve_is_measured_again(tmp_path: Path) -> None:
    StepCostStore(tmp_path).save(truth(scale=3.0, measured_at=10_000.0))
    young = Bench(tmp_path, date=10_000.0 + UPKEEP.max_age_s - 60)
    assert young.engine.upkeep_in_s(UPKEEP.idle_s) == pytest.approx(60.0)
    assert young.curve.gauges() == {"step_cost_age_s": UPKEEP.max_age_s - 60, "step_cost_cached": 1.0}
    old = Bench(tmp_path, date=10_000.0 + UPKEEP.max_age_s + 1)
    assert old.run(old.idle()) > 100
    assert old.curve.gauges()["step_cost_cached"] == 0.0
    assert old.curve.cost is not None
    assert old.curve.cost.verify(1, 1, 0).seconds == pytest.approx(0.009)
    kept = StepCostStore(tmp_path).load(SUBJECT)
    assert kept == old.curve.cost
    assert kept.measured_at == pytest.approx(old.date + old.clock.now(), abs=100)


@pytest.mark.parametrize(
    ("scale", "age_s", "again"), [(1.0, 4000.0, False), (1.2, 4000.0, False), (1.4, 4000.0, True), (0.6, 4000.0, True)]
)
def test_steps_that_disagree_with_the_curve_have_it_measured_again(
    tmp_path: Path, scale: float, age_s: float, again: bool
) -> None:
    StepCostStore(tmp_path).save(truth(measured_at=10_000.0))
    bench = Bench(tmp_path, scale=scale, date=10_000.0 + age_s, upkeep=PATIENT)

    async def work():
        assert await bench.idle() == 0
        await bench.ask("r", [1, 2, 3], 40)
        steps = await bench.idle()
        assert (steps > 0) is again
        return bench.curve.gauges().get("step_cost_drift")

    drift = bench.run(work())
    assert drift == (None if again else pytest.approx(scale)), "a new curve has not been compared yet"


def test_a_young_curve_and_few_steps_are_left_alone(tmp_path: Path) -> None:
    StepCostStore(tmp_path).save(truth(measured_at=10_000.0))
    bench = Bench(tmp_path, scale=2.0, date=10_000.0, upkeep=PATIENT)

    async def work():
        await bench.ask("r", [1, 2, 3], 40)
        assert bench.engine.upkeep_in_s(UPKEEP.idle_s) > 0
        assert bench.curve.gauges()["step_cost_drift"] == pytest.approx(2.0)
        bench.date += SETTLED_S
        assert bench.engine.upkeep_in_s(UPKEEP.idle_s) == 0

    bench.run(work())
    few = Bench(tmp_path, scale=2.0, date=10_000.0 + 600.0)
    few.run(few.ask("r", [1, 2, 3], 8))
    assert few.engine.upkeep_in_s(UPKEEP.idle_s) > 0
    assert "step_cost_drift" not in few.curve.gauges()


def test_a_failing_measurement_is_put_off_and_harms_no_request(tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    async def work():
        bench.executor.broken = True
        await bench.engine.keep_up()
        assert bench.scheduler.pool.available == 200
        assert bench.engine.upkeep_in_s(UPKEEP.idle_s) == pytest.approx(RETRY_S)
        bench.executor.broken = False
        assert len(await bench.ask("r", [1, 2, 3], 5)) == 5
        await bench.clock.sleep(RETRY_S)
        assert await bench.idle() > 100

    bench.run(work())
    assert bench.curve.cost is not None


def test_a_folder_that_cannot_be_written_costs_only_the_keeping(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    bench = Bench(tmp_path / "file")
    assert bench.run(bench.idle()) > 100
    assert bench.curve.cost is not None


def test_without_upkeep_nothing_is_ever_due(tmp_path: Path) -> None:
    bench = Bench(tmp_path, upkeep=None)
    assert bench.engine.upkeep_in_s(1e9) is None
