"""A run that was killed goes on after its last finished block, and only as the same experiment."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Asking, Trial, conduct
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.journal import FILE, Journal
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.errors import Unavailable, UsageError
from netgain.measuring.client.options import Options
from netgain.measuring.workload.item import Item
from tests.deciding.arms.engine_double import EngineDouble
from tests.waiting import PATIENCE_S

SUBJECT = {
    "design": {"groups": [["a", "b"], ["c"]], "concurrency": 1},
    "arms": {"baseline": {"command": ["serve", "-x"]}},
}
ASKING = Asking(model="m", options=Options(server_record=False))


def design():
    items = [Item(id=f"i{n}", category="c", max_tokens=1, prompt=f"p{n} says") for n in range(8)]
    return Design(groups=grouped(items, 4, 2), concurrency=1)


async def run(url, journal):
    arms = {name: AttachedServer(name, url) for name in (BASELINE, CANDIDATE)}
    return await conduct(arms, design(), ASKING, "salt", journal=journal)


KILLED = """
import asyncio, sys
from pathlib import Path
from netgain.deciding.experiment.journal import Journal
from tests.deciding.test_journal import SUBJECT, run
asyncio.run(run(sys.argv[1], Journal.create(Path(sys.argv[2]), SUBJECT)))
"""


async def test_a_killed_run_goes_on_after_its_last_finished_block(tmp_path):
    path = tmp_path / FILE
    server = await EngineDouble(prefill_s=0.1).start()
    try:
        lab = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.url, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        async with asyncio.timeout(PATIENCE_S):
            while not path.exists() or path.read_bytes().count(b"\n") < 4:
                await asyncio.sleep(0.02)
        lab.send_signal(signal.SIGKILL)
        lab.wait()
        with path.open("ab") as file:
            file.write(b'{"entry":"block","block":{"ind')  # what a crash leaves of the last write
        journal = Journal.resume(path, SUBJECT)
        done = len(journal.kept)
        assert 3 <= done < 16
        asked = server.totals[1]
        trial = await run(server.url, journal)
    finally:
        await server.stop()
    assert server.totals[1] - asked == 4 + 2 * (16 - done), "a warm-up of two prompts per arm, then what was missing"
    assert [block.index for block in trial.blocks] == list(range(16))
    assert [(block.group, block.arm) for block in trial.blocks] == [
        (group, arm) for group in range(4) for arm in design().order(group)
    ]
    assert len(trial.observations) == 32
    (told,) = [check for check in check_trial(trial) if check.name == "resumed"]
    assert "several processes" in told.says
    journal.close()
    again = Journal.resume(path, SUBJECT)
    assert tuple(kept.block for kept in again.kept) == trial.blocks
    assert sum((kept.observations for kept in again.kept), ()) == trial.observations
    again.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"design": {"groups": [["a", "b"], ["c"]], "concurrency": 2}}, r"design\.concurrency was 1 and is 2 now"),
        ({"design": {"groups": [["a", "b"], ["d"]], "concurrency": 1}}, r"design\.groups\[1\]\[0\] was c and is d now"),
        ({"arms": {"baseline": {"command": ["serve", "-y"]}}}, r"arms\.baseline\.command\[1\] was -x and is -y now"),
        ({"arms": {}}, r"arms\.baseline was .* and is absent now"),
    ],
)
def test_another_experiment_is_refused_by_the_field_that_differs(tmp_path, change, named):
    Journal.create(tmp_path / FILE, SUBJECT).close()
    with pytest.raises(UsageError, match=named):
        Journal.resume(tmp_path / FILE, {**SUBJECT, **change})


def test_a_folder_that_holds_an_experiment_is_not_begun_anew(tmp_path):
    Journal.create(tmp_path / FILE, SUBJECT).close()
    with pytest.raises(UsageError, match="holds another experiment"):
        Journal.create(tmp_path / FILE, SUBJECT)


def test_counters_of_servers_know_only_what_came_after_the_run_went_on(make_trial):
    seen = tuple(make_trial(groups=2))
    assert Trial(observations=seen, blocks=()).fresh == seen
    again = Trial(observations=seen, blocks=(), resumed_at=(2, 5))
    assert {one.block for one in again.fresh} == {5, 6, 7}


def test_two_processes_do_not_write_one_journal(tmp_path):
    journal = Journal.create(tmp_path / FILE, SUBJECT)
    with pytest.raises(UsageError, match="another process is writing"):
        Journal.resume(tmp_path / FILE, SUBJECT)
    journal.close()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "nothing to resume"),
        (b"", "does not begin with what was measured"),
        (b"[]\n", "does not begin with what was measured"),
        (b'{"schema":"netgain.blocks","version":99,"subject":{}}\n', "of version 99"),
        (b'{"schema":"netgain.verdict","version":1}\n', "it is a netgain.verdict"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path, content, told):
    path = Path(tmp_path / FILE)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=told):
        Journal.resume(path, SUBJECT)


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / FILE
    line = msgspec.json.encode({"schema": "netgain.blocks", "version": 1, "subject": SUBJECT})
    path.write_bytes(line + b'\n{"entry":"block"}\n')
    with pytest.raises(UsageError, match="line 2 cannot be read"):
        Journal.resume(path, SUBJECT)


async def test_a_full_disk_ends_a_run_in_one_line_and_the_blocks_before_it_are_gone_on_with(tmp_path):
    """A limit on the size of files stands for the disk."""
    path = tmp_path / FILE
    engine = await EngineDouble().start()
    try:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
        journal = Journal.create(path, SUBJECT)
        try:
            with pytest.raises(Unavailable, match=r"cannot write on .* make room"):
                await run(engine.url, journal)
        finally:
            journal.close()
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        again = Journal.resume(path, SUBJECT)
        assert 1 <= len(again.kept) < design().blocks
        assert len((await run(engine.url, again)).blocks) == design().blocks
        again.close()
    finally:
        await engine.stop()
