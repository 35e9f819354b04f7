"""The scheduler is one class on two clocks: it decides the same on real weights and on a cost model."""

import asyncio
import time

import pytest

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.stage import Stage
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.batch import Batch, Segment
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.simulated_executor import SimulatedExecutor
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.verify import CoupledVerifier

COST = StepCost(
    points=tuple(
        StepPoint(batch=batch, tokens=tokens, context=context, seconds=0.008 + 0.001 * batch * tokens)
        for batch in (1, 16)
        for tokens in (1, 8, 64)
        for context in (0, 1024)
    )
)
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")
SHAPES = ((50, 12), (9, 30), (33, 20), (70, 6), (5, 25))


def requests() -> list[Request]:
    return [
        Request(
            id=f"r{index}",
            prompt=tuple(100 + (index * 7 + i) % 50 for i in range(prompt)),
            sampling=SamplingParams(max_tokens=output, temperature=0.0, ignore_eos=True),
        )
        for index, (prompt, output) in enumerate(SHAPES)
    ]


def simulated(clock: VirtualClock, collector: Collector, k: int = 0, acceptance: float = 0.0) -> Engine:
    scheduler = Scheduler(
        BlockPool(6),
        clock,
        block_tokens=16,
        max_batch_tokens=24,
        max_running=4,
        max_waiting=99,
        max_length=200,
        prefix_caching=False,
    )
    return Engine(
        executor=SimulatedExecutor(clock, COST, acceptance=acceptance),
        scheduler=scheduler,
        namespace=NAMESPACE,
        clock=clock,
        collector=collector,
        vocab_size=1000,
        eos_ids=frozenset(),
        proposer=NgramProposer(k, 1, 3) if k else None,
        verifier=CoupledVerifier() if k else None,
        max_drafts=k,
    )


async def drain(engine: Engine) -> None:
    for request in requests():
        engine.submit(request)
    while engine.has_work:
        await engine.step()
        engine.check()


def compositions(collector: Collector) -> list[list[tuple[str, int, int, int]]]:
    return [
        [(s.request_id, s.prefill_tokens, s.decode_tokens, s.context_tokens) for s in record.shares]
        for record in collector.steps
    ]


def on_virtual_time(engine: Engine, clock: VirtualClock) -> None:
    async def main() -> None:
        await clock.run(asyncio.ensure_future(drain(engine)))

    asyncio.run(main())


def test_steps_are_composed_alike_on_weights_and_on_the_cost_model(default_model_path):
    clock, simulation = VirtualClock(), Collector()
    on_virtual_time(simulated(clock, simulation), clock)
    tree = {
        "model": {"source": str(default_model_path)},
        "cache": {"kv_tokens": 96, "prefix_caching": False},
        "scheduler": {"max_batch_tokens": 24, "max_running": 4, "max_model_len": 200},
    }
    real = Collector()
    built = build_engine(EngineConfig.model_validate(tree), WallClock(), real)
    asyncio.run(drain(built.engine))
    built.engine.close()
    assert compositions(real) == compositions(simulation)
    assert built.engine.stats().preemptions > 0, "the pool was meant to be too small"


def test_virtual_time_is_the_sum_of_step_costs():
    clock, collector = VirtualClock(), Collector()
    engine = simulated(clock, collector)
    began = time.monotonic()
    on_virtual_time(engine, clock)
    assert clock.now() == pytest.approx(sum(r.executed_s - r.scheduled_s for r in collector.steps))
    assert clock.now() > 0.3
    assert time.monotonic() - began < clock.now() + 60


def test_acceptance_is_the_given_rate():
    clock = VirtualClock()
    engine = simulated(clock, Collector(), k=4, acceptance=1.0)
    on_virtual_time(engine, clock)
    stats = engine.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 0
    assert stats.output_tokens == sum(output for _, output in SHAPES)


def test_a_mixed_step_reads_the_weights_once():
    executor = SimulatedExecutor(VirtualClock(), COST)

    def segment(stage: Stage, tokens: int) -> Segment:
        sampling = SamplingParams(max_tokens=1)
        return Segment(
            request_id="r",
            stage=stage,
            tokens=(0,) * tokens,
            start=0,
            block_table=(0,),
            rows=1,
            drafts=0,
            sampling=sampling,
            choice=0,
        )

    mixed = Batch((segment(Stage.PREFILL, 8), segment(Stage.DECODE, 1)))
    assert executor.seconds(mixed) == pytest.approx(0.016)
    assert executor.outside == 0
    executor.seconds(Batch((segment(Stage.PREFILL, 65),)))
    assert executor.outside == 1
