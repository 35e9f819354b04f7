"""The real HTTP process over the real engine process, whose executor computes nothing: every step takes as long as is said, and
brings a filler token for each request. `server PORT STEP_S` serves; `engine STEP_S --socket PATH` is what its fleet starts."""

import asyncio
import sys
from collections.abc import Sequence

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.event_loop import new_loop
from netgain.ledger.clock import WallClock
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.runtime import engine_process
from netgain.serving.runtime.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    SchedulerSettings,
    ServerConfig,
    StepCostSettings,
)
from netgain.serving.runtime.simulated_executor import SimulatedExecutor

MODEL = "simulated"
KV_TOKENS = 16_384
FILLER = 3137  # a short word of the default model


def main(arguments: Sequence[str]) -> None:
    role, *rest = arguments
    if role == "engine":
        step_s, *options = rest
        cost = StepCost(points=(StepPoint(batch=1, tokens=1, context=0, seconds=float(step_s)),))
        engine_process.main(options, lambda executor: SimulatedExecutor(WallClock(), cost, filler=FILLER))
    else:
        port, step_s = rest
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(serve(int(port), step_s))


async def serve(port: int, step_s: str) -> None:
    config = ServerConfig(
        port=port,
        engine=EngineConfig(
            model=ModelSettings(source="default", name=MODEL, threads=1),
            cache=CacheSettings(kv_tokens=KV_TOKENS),
            scheduler=SchedulerSettings(max_batch_tokens=4096),
            step_cost=StepCostSettings(refresh="never"),
        ),
    )
    command = (sys.executable, "-m", "benchmarks._simulated_server", "engine", step_s)
    fleet = Fleet(config.engine, config.fleet, command=command)
    try:
        await fleet.launch()
        from netgain.serving.api.server import run_server  # while the engine process loads

        await run_server(config, fleet, lambda url, info, keys: print(f"serving at {url}/v1", flush=True))
    finally:
        await fleet.close()


if __name__ == "__main__":
    main(sys.argv[1:])
