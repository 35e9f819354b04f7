"""What a plain decode step takes besides the model's work: no growing memory, few crossings into the kernels."""

import asyncio
import gc
import tracemalloc

import torch

from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.serving.engine.batch import Batch
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.torch_executor import TorchExecutor
from tests.serving.runtime.test_packing import segment

BATCH = 8


class Counting:
    """Kernels that note the name of every operation that is asked for, and then do it."""

    def __init__(self, kernels):
        self._kernels, self.calls = kernels, []

    def __getattr__(self, name):
        value = getattr(self._kernels, name)
        if not callable(value):
            return value

        def noted(*arguments, **named):
            self.calls.append(name)
            result = value(*arguments, **named)
            return result if name != "stack" else lambda *rest: (self.calls.append("run a stack"), result(*rest))[1]

        return noted


def engine_of(chain_model, collector):
    config = EngineConfig.model_validate({"model": {"source": str(chain_model.folder)}, "cache": {"kv_tokens": 8192}})
    return build_engine(config, WallClock(), collector).engine


def submit(engine, max_tokens):
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    for index in range(BATCH):
        engine.submit(Request(id=f"r{index}", prompt=(108, index), sampling=sampling))  # "l" goes round


def test_memory_does_not_grow_with_steps_beyond_what_is_written_down_of_each_token(chain_model):
    async def grown():
        engine = engine_of(chain_model, Collector(steps_kept=4))
        submit(engine, 500)
        for _ in range(100):
            await engine.step()
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(300):
            await engine.step()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        engine.close()
        return (after - before) / (300 * BATCH)

    # bytes per token: the token, its interval in the request's timeline, a share of a block's key
    assert asyncio.run(grown()) < 100


def test_a_decode_step_crosses_into_the_kernels_six_times(chain_model):
    kernels = Counting(load_kernels("auto", 1))
    model = load_model(str(chain_model.folder), "auto", kernels).model
    executor = TorchExecutor(model, PagedKV(model.config, 8, 16, torch.float32), kernels)
    kernels.calls.clear()
    batch = [segment((108,), 0, (index,)) for index in range(3)]
    for _ in range(2):
        asyncio.run(executor.execute(Batch(tuple(batch))))
    assert kernels.calls == 2 * ["plan", "embed", "run a stack", "rms_norm", "linear", "argmax"]


def test_a_step_says_how_long_the_model_computed_and_what_lay_between(chain_model):
    async def records():
        collector = Collector()
        engine = engine_of(chain_model, collector)
        for _ in range(2):
            submit(engine, 3)
            while engine.has_work:
                await engine.step()
        engine.close()
        return collector

    collector = asyncio.run(records())
    assert all(0 < step.forward_s <= step.executed_s - step.scheduled_s for step in collector.steps)
    # the second lot came when nothing ran
    idle = len(collector.steps) // 2
    assert [index for index, step in enumerate(collector.steps) if step.between_s is None] == [0, idle]
    counters = collector.counters()
    assert counters["step_forward_s"] == sum(step.forward_s for step in collector.steps)
    assert 0 < counters["step_between_s"] == sum(step.between_s or 0.0 for step in collector.steps)
