"""Servers that answer nobody without a key: the arm's headers go with health checks, resets and the reading of counters."""

import sys
import time

import pytest

from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.arms.described import described_from, launched, setup_of
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.counting import FigureLog
from netgain.errors import UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.item import Item
from tests.deciding.arms import engine_double
from tests.deciding.arms.engine_double import EngineDouble
from tests.waiting import PATIENCE_S

KEY = "Bearer s3cret"
ITEM = Item(id="i", category="c", max_tokens=1, prompt="a b c", temperature=0.0)


@pytest.fixture
async def locked():
    server = await EngineDouble(engine="vllm", key=KEY).start()
    yield server
    await server.stop()


def hooked(url):
    return described_from({"engine": "vllm", "url": url, "start": "true", "stop": "true"}, "arm.yaml")


async def test_a_hooked_arm_behind_a_key_is_ready_reset_and_counted(locked, tmp_path):
    headers = {"Authorization": KEY}
    arm = launched(hooked(locked.url), "candidate", tmp_path, headers=headers)
    await arm.start()
    try:
        await arm.ready(PATIENCE_S)
        log = FigureLog()
        await log.begin({"candidate": arm})
        done = await run(arm.url, "m", [ITEM], Closed(1), Options(headers=headers))
        assert done.records[0].ok
        await log.end({"candidate": arm})
        assert log.figures("candidate")["output_tokens"].gained == 1.0
        assert await arm.reset() == "prefix cache reset by /reset_prefix_cache"
    finally:
        await arm.stop()


async def test_the_configuration_of_an_arm_behind_a_key_is_read(tmp_path):
    server = await EngineDouble(engine="llama.cpp", key=KEY).start()
    described = described_from({"engine": "llama.cpp", "url": server.url, "start": "true", "stop": "true"}, "arm.yaml")
    try:
        arm = launched(described, "candidate", tmp_path, headers={"Authorization": KEY})
        assert (await setup_of(arm, described)).configuration == {"n_ctx": "4096"}
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("headers", "said"),
    [({}, "wants a key"), ({"Authorization": "Bearer wr0ng"}, "does not take the headers it was sent")],
)
@pytest.mark.parametrize("attached", [False, True])
async def test_a_key_that_is_missing_is_said_at_once_and_never_repeated(locked, tmp_path, headers, said, attached):
    if attached:
        arm = AttachedServer("candidate", locked.url, "vllm", headers=headers)
    else:
        arm = launched(hooked(locked.url), "candidate", tmp_path, headers=headers)
    began_s = time.monotonic()
    try:
        await arm.start()
        with pytest.raises(
            UsageError, match=rf"the candidate server {said}: .* answers 401; .*--header NAME=VALUE"
        ) as told:
            await arm.ready(60.0)
    finally:
        await arm.stop()
    assert time.monotonic() - began_s < 50.0
    assert "wr0ng" not in str(told.value)


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_server_that_was_started_here_wants_its_key_too(tmp_path, keyed):
    def command(port):
        return (sys.executable, engine_double.__file__, "--port", str(port), "--api-key", KEY)

    arm = LaunchedServer("baseline", Program(command=command, shown=("double",)), tmp_path / "log")
    arm.headers = {"Authorization": KEY} if keyed else {}
    try:
        await arm.start()
        if keyed:
            await arm.ready(PATIENCE_S)
        else:
            with pytest.raises(UsageError, match="the baseline server wants a key"):
                await arm.ready(PATIENCE_S)
    finally:
        await arm.stop()
