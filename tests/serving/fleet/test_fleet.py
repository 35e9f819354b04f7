"""A fleet over real engine processes: faults are named, in-flight requests are told, and nothing is left running."""

import asyncio
import gc
import itertools
import os
import signal
import sys
import time

import psutil
import pytest

from netgain.errors import RequestRejected, Unavailable, UsageError
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.fleet.health import ReplicaState
from netgain.serving.fleet.pace import Pace
from netgain.serving.fleet.reply import Delivery, EngineLost, Loss
from netgain.serving.runtime.config import EngineConfig, FleetSettings, ModelSettings
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("leaves_no_process")

SETTINGS = FleetSettings(heartbeat_s=0.1, hang_timeout_s=30, restart_backoff_s=0.1, start_timeout_s=60)


@pytest.fixture
def config(chain_model) -> EngineConfig:
    return EngineConfig(model=ModelSettings(source=str(chain_model.folder), kernels="torch", threads=1))


def request(name: str, start: str, max_tokens: int = 8) -> Request:
    return Request(
        id=name,
        prompt=(ord(start) - ord("!"),),  # byte-level vocabularies begin with "!"
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0),
        received_s=time.monotonic(),
    )


async def test_requests_are_served_aborted_and_refused(config):
    fleet = Fleet(config, SETTINGS)
    await fleet.start()
    try:
        events: asyncio.Queue[Delivery | Loss] = asyncio.Queue()
        fleet.submit(request("a", "s"), events.put_nowait)
        tokens: list[int] = []
        while True:
            event = await asyncio.wait_for(events.get(), PATIENCE_S)
            assert isinstance(event, Delivery)
            tokens += event.output.tokens
            if event.output.finish_reason is not None:
                break
        assert event.output.finish_reason == "stop"
        assert len(tokens) == event.output.trace.output_tokens == 3
        assert fleet.health().replicas[0].in_flight == 0

        ticket = fleet.submit(request("b", "l", 4000), events.put_nowait)
        await asyncio.wait_for(events.get(), PATIENCE_S)
        ticket.abort()
        while (event := await asyncio.wait_for(events.get(), PATIENCE_S)).output.finish_reason is None:
            pass
        assert event.output.finish_reason == "abort"
        ticket.abort()  # over: nothing happens

        fleet.submit(request("c", "l", 10**6), events.put_nowait)
        event = await asyncio.wait_for(events.get(), PATIENCE_S)
        assert isinstance(event, Loss)
        assert isinstance(event.error, RequestRejected)
        assert event.error.parameter == "max_tokens"
    finally:
        await fleet.close()


async def test_a_killed_engine_is_named_told_and_replaced(config):
    fleet = Fleet(config, SETTINGS)
    await fleet.start()
    try:
        events: asyncio.Queue[Delivery | Loss] = asyncio.Queue()
        fleet.submit(request("a", "l", 4000), events.put_nowait)
        await asyncio.wait_for(events.get(), PATIENCE_S)
        pid = fleet.health().replicas[0].pid
        os.kill(pid, signal.SIGKILL)
        while isinstance(event := await asyncio.wait_for(events.get(), PATIENCE_S), Delivery):
            pass
        assert isinstance(event.error, EngineLost)
        assert f"engine process {pid} was killed by signal 9 (SIGKILL)" in str(event.error)
        with pytest.raises(Unavailable, match="SIGKILL"):
            fleet.submit(request("b", "s"), events.put_nowait)
        with pytest.raises(Unavailable, match="SIGKILL"):
            await fleet.step_cost(0.1, 16)
        assert fleet.health().replicas[0].state in (ReplicaState.FAILED, ReplicaState.RESTARTING)
        await until(lambda: fleet.health().ready)
        assert fleet.health().replicas[0].restarts == 1
        assert fleet.health().replicas[0].pid != pid
        fleet.submit(request("c", "s"), events.put_nowait)
        assert isinstance(await asyncio.wait_for(events.get(), PATIENCE_S), Delivery)
    finally:
        await fleet.close()


@pytest.mark.parametrize("state", ["loading", "stopped"])
async def test_close_leaves_no_process_whatever_it_is_doing(config, state):
    fleet = Fleet(config, SETTINGS.model_copy(update={"stop_timeout_s": 1.0}))
    starting = asyncio.create_task(fleet.start())
    await until(lambda: fleet.health().replicas[0].pid is not None)
    engine = psutil.Process(fleet.health().replicas[0].pid)
    lost: list[object] = []
    if state != "loading":
        await starting
        fleet.submit(request("a", "l", 4000), lost.append)
    if state == "stopped":
        engine.suspend()
    await fleet.close()
    await fleet.close()
    assert not engine.is_running()
    if state == "loading":
        with pytest.raises(Unavailable, match="shutting down"):
            await starting
    else:
        assert "shutting down" in str(lost[-1].error)
    assert fleet.health().replicas[0].state is ReplicaState.CLOSED


async def test_a_launched_engine_waits_to_be_told_what_to_build(config):
    fleet = Fleet(config, SETTINGS)
    await fleet.launch()
    engine = psutil.Process(fleet.health().replicas[0].pid)
    await until(lambda: any("libtorch_cpu" in mapped.path for mapped in engine.memory_maps()))
    assert fleet.health().replicas[0].state is ReplicaState.STARTING
    await fleet.start()
    assert fleet.health().replicas[0].pid == engine.pid
    assert fleet.health().ready
    await fleet.close()
    assert not engine.is_running()


async def test_a_launched_engine_that_is_never_started_ends_with_close(config):
    fleet = Fleet(config, SETTINGS)
    await fleet.launch()
    engine = psutil.Process(fleet.health().replicas[0].pid)
    await fleet.close()
    assert not engine.is_running()
    with pytest.raises(Unavailable, match="shutting down"):
        await fleet.start()


async def test_what_ends_a_launched_process_is_said_by_start(caplog):
    fleet = Fleet(EngineConfig(), SETTINGS, command=script("raise SystemExit(3)"))
    await fleet.launch()
    await asyncio.sleep(0.3)
    with pytest.raises(Unavailable, match="exited with code 3"):
        await fleet.start()
    unused = Fleet(EngineConfig(), SETTINGS, command=("/nowhere/python",))
    await unused.launch()
    await unused.close()
    del unused
    gc.collect()
    assert "never retrieved" not in caplog.text


def script(text: str) -> tuple[str, ...]:
    """A process that is no engine."""
    return (sys.executable, "-S", "-c", text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("print('out of luck'); raise SystemExit(3)", "exited with code 3; its last log line: out of luck"),
        ("import os; os.kill(os.getpid(), 11)", r"killed by signal 11 \(SIGSEGV\)"),
        ("import time; time.sleep(60)", "was not ready for .* s; it was killed"),
        (
            "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); s.send(b'\\xff' * 9);"
            " time.sleep(60)",
            "4294967295 bytes was announced",
        ),
        (
            "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[2]); s.recv(9999);"
            " s.send(b'\\x00\\x00'); s.close(); time.sleep(60)",
            "ended inside a frame",
        ),
    ],
)
async def test_a_process_that_does_not_become_ready_is_explained(text, cause):
    settings = SETTINGS.model_copy(update={"start_timeout_s": 0.7 if "not ready" in cause else 30})
    fleet = Fleet(EngineConfig(), settings, command=script(text))
    with pytest.raises(Unavailable, match=cause):
        await fleet.start()


async def test_a_command_that_cannot_be_run_is_explained():
    with pytest.raises(Unavailable, match="/nowhere/python"):
        await Fleet(EngineConfig(), SETTINGS, command=("/nowhere/python",)).start()


async def test_a_configuration_that_cannot_work_is_a_usage_error():
    config = EngineConfig(model=ModelSettings(source="/nowhere/model"))
    with pytest.raises(UsageError, match="/nowhere/model"):
        await Fleet(config, SETTINGS).start()


async def test_restarts_come_ever_slower_and_stop_with_close(tmp_path):
    """An engine that becomes ready once and then never again."""
    first = tmp_path / "first"
    text = f"""
import pathlib, socket, struct, sys, time
with open({str(first)!r}, "a") as log:
    log.write(str(time.monotonic()) + "\\n")
if pathlib.Path({str(first)!r}).read_text().count("\\n") > 1:
    sys.exit(7)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[2])
ready = b"\\x82\\xa4type\\xa5Ready\\xa4info\\x81\\xa5model\\xa1m"
s.sendall(struct.pack(">I", len(ready)) + ready)
time.sleep(1)
"""
    settings = SETTINGS.model_copy(update={"restart_backoff_s": 0.2, "restart_backoff_max_s": 0.8})
    fleet = Fleet(EngineConfig(), settings, command=script(text))
    await fleet.start()
    await until(lambda: fleet.health().replicas[0].restarts >= 5)
    assert "exited with code 7" in fleet.health().cause
    await fleet.close()
    stamps = [float(line) for line in first.read_text().splitlines()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    assert gaps[1] >= 0.4
    assert gaps[2] >= 0.8
    assert all(gap >= 0.8 for gap in gaps[2:])


async def test_an_engine_that_never_comes_back_is_given_up(tmp_path):
    """vllm-project/vllm#53157: a front end that answers 503 for ever and never ends."""
    ready = "b'\\x82\\xa4type\\xa5Ready\\xa4info\\x81\\xa5model\\xa1m'"
    text = (
        f"import pathlib, socket, struct, sys, time; log = pathlib.Path({str(tmp_path / 'log')!r});"
        "first = not log.exists(); log.touch(); first or sys.exit(7); s = socket.socket(socket.AF_UNIX);"
        f"s.connect(sys.argv[2]); r = {ready}; s.sendall(struct.pack('>I', len(r)) + r); time.sleep(1)"
    )
    settings = SETTINGS.model_copy(update={"restart_backoff_s": 0.0, "max_failures": 3})
    fleet = Fleet(EngineConfig(), settings, command=script(text))
    await fleet.start()
    cause = await asyncio.wait_for(fleet.given_up(), PATIENCE_S)
    assert "failed 3 times in a row" in cause
    assert "exited with code 7" in cause
    assert not fleet.health().ready
    await fleet.close()


@pytest.mark.parametrize(
    ("reports", "seconds"),
    [
        ([], None),
        ([(0, 5)], None),
        ([(0, 5), (1, 5)], None),
        ([(0, 5), (4, 7)], 2.0),
        ([(0, 0), (100, 50), (110, 55), (120, 60)], 2.0),  # what lies further back than the window is forgotten
    ],
)
def test_the_pace_of_an_engine_is_that_of_its_last_seconds(reports, seconds):
    pace = Pace()
    for at_s, finished in reports:
        pace.note(at_s, finished)
    assert pace.seconds_per_request() == seconds


SLOW = """
import sys, time
from netgain.serving.runtime.engine_process import main
class Slow:
    def __init__(self, inner):
        self._inner = inner
    def __getattr__(self, name):
        return getattr(self._inner, name)
    async def execute(self, batch):
        time.sleep(4)  # as long as a step computes, nothing else runs on the loop
        return await self._inner.execute(batch)
main(sys.argv[1:], Slow)
"""


@pytest.mark.parametrize(("step_timeout_s", "survives"), [(60.0, True), (0.2, False)])
async def test_a_long_step_is_no_hang_until_it_exceeds_its_own_limit(config, step_timeout_s, survives):
    settings = FleetSettings(
        heartbeat_s=0.05, hang_timeout_s=1.5, step_timeout_s=step_timeout_s, restart_backoff_s=30, start_timeout_s=60
    )
    fleet = Fleet(config, settings, command=(sys.executable, "-c", SLOW))
    await fleet.start()
    try:
        events: asyncio.Queue[Delivery | Loss] = asyncio.Queue()
        started = time.monotonic()
        fleet.submit(request("a", "s", max_tokens=1), events.put_nowait)
        event = await asyncio.wait_for(events.get(), PATIENCE_S)
        if survives:
            assert time.monotonic() - started > settings.hang_timeout_s
            assert isinstance(event, Delivery)
        else:
            assert "has been in one step for" in str(event.error)
    finally:
        await fleet.close()
