"""Known delays, put into known places of a running engine, appear in the right stage: what shows that labels are true."""

import time
from collections.abc import Awaitable, Callable, Sequence

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import EngineTrace
from netgain.ledger.stage import Stage
from netgain.ledger.timeline import tile
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.batch import Batch, Segment, SegmentResult, StepResult
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.protocols import Ask, Draft
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.verify import CoupledVerifier

VOCAB = 7
BLOCK_TOKENS = 4
DELAY_S = 0.03
ATTEMPTS = 5


class Delay:
    """Sleeps, and knows how long it really slept: a loaded machine oversleeps, and that is part of the delay."""

    def __init__(self, seconds: float = DELAY_S) -> None:
        self.spent_s = 0.0
        self._seconds = seconds

    def __call__(self) -> None:
        began_s = time.monotonic()
        time.sleep(self._seconds)
        self.spent_s += time.monotonic() - began_s


class CountingModel:
    """A model whose text counts up forever, which n-gram drafts guess. `slow_when` says for which batches it is slow."""

    def __init__(self, delay: Delay, slow_when: Stage | None = None) -> None:
        self._delay = delay
        self._slow_when = slow_when

    async def execute(self, batch: Batch) -> StepResult:
        if any(segment.stage is self._slow_when for segment in batch.segments):
            self._delay()
        return StepResult(tuple(SegmentResult(_choices(segment)) for segment in batch.segments))

    def close(self) -> None:
        pass


class SlowWithout(CountingModel):
    """Is slow in every step that leaves out the named request, once that one has been seen."""

    def __init__(self, delay: Delay, name: str) -> None:
        super().__init__(delay)
        self._name = name
        self._seen = False

    async def execute(self, batch: Batch) -> StepResult:
        present = any(segment.request_id == self._name for segment in batch.segments)
        self._seen = self._seen or present
        if self._seen and not present:
            self._delay()
        return await super().execute(batch)


class SlowProposer(NgramProposer):
    """N-gram drafts that take their time."""

    def __init__(self, delay: Delay) -> None:
        super().__init__(k=3, lookup_min=1, lookup_max=3)
        self._delay = delay

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        self._delay()
        return super().propose(asks)


class SlowPool(BlockPool):
    """A pool whose prefix index takes its time."""

    def __init__(self, blocks: int, delay: Delay) -> None:
        super().__init__(blocks)
        self._delay = delay

    def lookup(self, keys: Sequence[bytes]) -> list[int]:
        self._delay()
        return super().lookup(keys)


def _choices(segment: Segment) -> tuple[int, ...]:
    end = segment.start + len(segment.tokens)
    return tuple(position % VOCAB for position in range(end - segment.rows + 1, end + 1))


def _engine(
    executor: CountingModel,
    *,
    pool: BlockPool | None = None,
    proposer: NgramProposer | None = None,
    max_batch_tokens: int = 64,
    max_running: int = 4,
) -> Engine:
    clock = WallClock()
    scheduler = Scheduler(
        pool or BlockPool(64),
        clock,
        block_tokens=BLOCK_TOKENS,
        max_batch_tokens=max_batch_tokens,
        max_running=max_running,
        max_waiting=8,
        max_length=128,
    )
    return Engine(
        executor=executor,
        scheduler=scheduler,
        namespace=Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n"),
        clock=clock,
        collector=Collector(),
        vocab_size=VOCAB,
        eos_ids=frozenset(),
        proposer=proposer,
        verifier=CoupledVerifier() if proposer else None,
        max_drafts=3 if proposer else 0,
    )


def _request(name: str, prompt_tokens: int, max_tokens: int) -> Request:
    return Request(
        id=name,
        prompt=tuple(position % VOCAB for position in range(prompt_tokens)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
        received_s=time.monotonic(),
    )


async def _serve(
    engine: Engine, requests: Sequence[Request], before: Delay | None = None
) -> dict[str, dict[Stage, float]]:
    """The stages of every request, from its arrival to the end of the step that ended it."""
    for request in requests:
        engine.submit(request)
    if before is not None:
        before()
    received = {request.id: request.received_s for request in requests}
    stages: dict[str, dict[Stage, float]] = {}
    for _ in range(1000):
        if not engine.has_work:
            break
        for output in await engine.step():
            if output.trace is not None:
                stages[output.request_id] = _tiles(output.trace, received[output.request_id])
    engine.close()
    assert stages.keys() == received.keys()
    return stages


def _tiles(trace: EngineTrace, received_s: float) -> dict[Stage, float]:
    return tile(trace.intervals, received_s, max(interval.end_s for interval in trace.intervals))


async def _assert_shows(stage: Stage, scenario: Callable[[], Awaitable[tuple[dict[Stage, float], Delay]]]) -> None:
    """The delay is in `stage` within 5 %, the other stages have nothing of it, and below 1 % is unattributed.

    Other work on the machine may stop this process anywhere, which a wrong label does not survive but a right one would
    fail by: so the scenario may be repeated.
    """
    for attempt in range(ATTEMPTS):
        stages, delay = await scenario()
        assert delay.spent_s >= 3 * DELAY_S, "the test injected too little to tell"
        total_s = sum(stages.values())
        faults = {
            "in the stage": abs(stages.get(stage, 0.0) - delay.spent_s) > 0.05 * delay.spent_s,
            "in others": total_s - stages.get(stage, 0.0) > 0.05 * total_s,
            "unattributed": stages.get(Stage.UNATTRIBUTED, 0.0) > 0.01 * total_s,
        }
        if not any(faults.values()):
            return
        assert attempt < ATTEMPTS - 1, f"{faults}: {delay.spent_s} s were injected, {stages} measured"


async def test_a_wait_for_admission_shows_as_queued() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay(5 * DELAY_S)
        stages = await _serve(_engine(CountingModel(delay)), [_request("r", 8, 4)], before=delay)
        return stages["r"], delay

    await _assert_shows(Stage.QUEUED, scenario)


async def test_a_busy_batch_shows_as_queued_for_who_waits() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        engine = _engine(CountingModel(delay, Stage.DECODE), max_running=1)
        stages = await _serve(engine, [_request("first", 8, 6), _request("second", 8, 1)])
        return stages["second"], delay

    await _assert_shows(Stage.QUEUED, scenario)


async def test_a_slow_prefix_index_shows_as_cache_lookup() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay(5 * DELAY_S)
        stages = await _serve(_engine(CountingModel(delay), pool=SlowPool(64, delay)), [_request("r", 8, 4)])
        return stages["r"], delay

    await _assert_shows(Stage.CACHE_LOOKUP, scenario)


async def test_slow_prompt_chunks_show_as_prefill() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        engine = _engine(CountingModel(delay, Stage.PREFILL), max_batch_tokens=8)
        return (await _serve(engine, [_request("r", 48, 4)]))["r"], delay

    await _assert_shows(Stage.PREFILL, scenario)


async def test_slow_decode_steps_show_as_decode() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        return (await _serve(_engine(CountingModel(delay, Stage.DECODE)), [_request("r", 8, 8)]))["r"], delay

    await _assert_shows(Stage.DECODE, scenario)


async def test_a_slow_proposer_shows_as_draft() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        engine = _engine(CountingModel(Delay()), proposer=SlowProposer(delay))
        return (await _serve(engine, [_request("r", 16, 24)]))["r"], delay

    await _assert_shows(Stage.DRAFT, scenario)


async def test_slow_verify_steps_show_as_verify() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        proposer = NgramProposer(k=3, lookup_min=1, lookup_max=3)
        engine = _engine(CountingModel(delay, Stage.VERIFY), proposer=proposer)
        return (await _serve(engine, [_request("r", 16, 24)]))["r"], delay

    await _assert_shows(Stage.VERIFY, scenario)


async def test_the_wait_for_blocks_taken_away_shows_as_preempted() -> None:
    async def scenario() -> tuple[dict[Stage, float], Delay]:
        delay = Delay()
        engine = _engine(SlowWithout(delay, "young"), pool=BlockPool(8))
        stages = await _serve(engine, [_request("old", 8, 20), _request("young", 8, 20)])
        return stages["young"], delay

    await _assert_shows(Stage.PREEMPTED, scenario)
