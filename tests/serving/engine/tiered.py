"""An engine over a tiny exact model, with tiers, on real or virtual time."""

import asyncio
import random
import time

from netgain.cost.link import ShapedLink
from netgain.cost.step_cost import StepCost, StepPoint
from netgain.ledger.collector import Collector
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.blocks.retention import Retention
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.kv_load import TieringOptions
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.tiering import Tiering
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.verify import CoupledVerifier
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.envelope import PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.kv_store import KVStore
from netgain.serving.tiers.medium import Fault, FaultKind
from netgain.serving.tiers.planes import expected
from netgain.serving.tiers.runner import SameLoop
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier, TierOptions
from tests.serving.engine.recall_executor import RecallExecutor, RecallMemory, continuation

VOCAB = 17
BLOCK = 4
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="int32", numerics="n")
STEP_S = 1.0


class Timed(RecallExecutor):
    """Takes `step_s` of the clock per step and `token_s` per token."""

    def __init__(self, clock, step_s, token_s, *arguments) -> None:
        super().__init__(*arguments)
        self._clock, self._step_s, self._token_s = clock, step_s, token_s

    async def works(self, batch, share):
        if self._step_s or self._token_s:
            await self._clock.sleep((self._step_s + self._token_s * batch.tokens) * share)


class Bad(DramMedium):
    """Loses, spoils, delays and refuses, each as often as asked; all that is read while `all_spoilt`."""

    all_spoilt = False

    def __init__(self, clock, seed: int, rate: float) -> None:
        super().__init__(LRU(1 << 24))
        self._clock, self._random, self._rate = clock, random.Random(seed), rate

    async def read(self, keys):
        return await self._spoilt(await super().read(keys))

    async def ranges(self, wanted):
        return await self._spoilt(await super().ranges(wanted))

    async def _spoilt(self, found):
        if self._random.random() < self._rate:
            await self._clock.sleep(self._random.choice([0.001, 0.01, 0.1]))
        if self._random.random() < self._rate / 4:
            raise Fault(FaultKind.ERROR, "the medium is not well")
        if self.all_spoilt:
            return [None if data is None else bytes(len(data)) for data in found]
        return [None if data is None else self._touched(bytes(data)) for data in found]

    def _touched(self, data: bytes) -> bytes | None:
        if self._random.random() >= self._rate:
            return data
        match self._random.randrange(3):
            case 0:
                return None
            case 1:
                return data[: self._random.randrange(len(data) or 1)]
        place = self._random.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << self._random.randrange(8))]) + data[place + 1 :]


def make_engine(
    clock,
    medium=None,
    *,
    runner=None,
    blocks=64,
    budget=64,
    running=8,
    k=0,
    step_s=0.0,
    token_s=0.0,
    cost=None,
    caching_tiers=(),
    timeout_s=60.0,
    collector=None,
    layers=1,
    retention_s=None,
    unix_s=time.time,
    admissions=(),
    envelope=None,
    **options,
) -> Engine:
    executor = Timed(clock, step_s, token_s, blocks, BLOCK, VOCAB)
    memory = RecallMemory(executor, BLOCK, layers)
    scheduler = Scheduler(
        BlockPool(blocks, Retention(retention_s, unix_s)),
        clock,
        block_tokens=BLOCK,
        max_batch_tokens=budget,
        max_running=running,
        max_waiting=64,
        max_length=300,
    )
    media = [DramMedium(LRU(1 << 20)) if medium is None else medium, *caching_tiers]
    tier_options = TierOptions(group=4, timeout_s=timeout_s, open_s=0.01, retention_s=retention_s)
    tiers = [
        Tier(f"tier{index}", one, clock, tier_options, expected(memory.planes), unix_s)
        for index, one in enumerate(media)
    ]
    collector = collector or Collector()
    tiering = Tiering(
        KVStore(Stack(tiers, clock), memory.planes, clock, envelope or PlainEnvelope(unix_s), admissions=admissions),
        memory,
        scheduler,
        clock,
        collector,
        runner or SameLoop(),
        PrefillCost(lambda: cost, budget),
        TieringOptions(group=4, **{"lookup_s": 10.0, **options}),
    )
    return Engine(
        executor=executor,
        scheduler=scheduler,
        namespace=NAMESPACE,
        clock=clock,
        collector=collector,
        vocab_size=VOCAB,
        eos_ids=frozenset(),
        proposer=NgramProposer(k=k, lookup_min=1, lookup_max=3) if k else None,
        verifier=CoupledVerifier() if k else None,
        max_drafts=k,
        tiering=tiering,
    )


def request(name: str, prompt, max_tokens=6, **fields) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(id=name, prompt=tuple(prompt), sampling=sampling, **fields)


def text(seed: int, length: int) -> tuple[int, ...]:
    draw = random.Random(seed)
    return tuple(draw.randrange(VOCAB) for _ in range(length))


class Served:
    """Drives an engine and keeps what it said."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.last: dict = {}
        self.ended_s: dict[str, float] = {}

    async def step(self) -> None:
        for output in await self.engine.step():
            self.tokens.setdefault(output.request_id, []).extend(output.tokens)
            if output.finish_reason:
                self.last[output.request_id] = output
                self.ended_s[output.request_id] = self.engine._clock.now()
        self.engine.check()
        await asyncio.sleep(0)

    async def run(self, *requests: Request) -> None:
        for one in requests:
            self.engine.submit(one)
        turns = 0
        while self.engine.has_work:
            await self.step()
            turns += 1
            assert turns < 50_000, "the engine does not come to an end"

    async def settle(self) -> None:
        """Everything is stored, and nothing is left on the device."""
        await self.engine._tiering._store.settle()
        assert self.engine.scheduler.pool.available == self.engine.scheduler.pool.blocks
        self.engine.scheduler.pool.clear_cache()

    def kv(self, name: str):
        return self.last[name].trace.kv

    def right(self, one: Request) -> bool:
        assert self.last[one.id].error is None
        return tuple(self.tokens[one.id]) == continuation(one.prompt, one.sampling.max_tokens, VOCAB)


def on_virtual_time(engine: Engine, main) -> Served:
    served = Served(engine)

    async def whole() -> None:
        await engine._clock.run(asyncio.ensure_future(main(served)))

    asyncio.run(whole())
    return served


def shaped(clock, latency_s: float, bytes_per_s: float, medium=None) -> ShapedMedium:
    return ShapedMedium(
        medium or DramMedium(LRU(1 << 24)), clock, ShapedLink(latency_s, bytes_per_s), ShapedLink(0.0, float("1e12"))
    )


def curve(token_s: float) -> StepCost:
    return StepCost(
        points=tuple(
            StepPoint(batch=1, tokens=tokens, context=context, seconds=token_s * tokens)
            for tokens in (1, 256)
            for context in (0, 256)
        )
    )
