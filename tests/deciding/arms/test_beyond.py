"""What an arm keeps beyond its server is empty at every start, and gone at the end; its user's own files stay."""

import shlex

import pytest

from netgain.deciding.decide.engines import beyond_of, launch
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.beyond import Beyond
from netgain.deciding.experiment.arms.launched import LaunchedServer, Program
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.technique.tier_asked import TierAsked, parse_tier
from netgain.deciding.technique.tiering_switches import tiering_switch
from netgain.errors import Unavailable, UsageError

SLEEPS = ("sh", "-c", "sleep 60")


def settings(tmp_path, **other):
    values = {"output": tmp_path / "out", "techniques": ("kv-tiers",)}
    return Settings(**{**values, **other})


async def test_each_start_finds_an_empty_folder_and_the_end_leaves_none(tmp_path, leaves_no_process):
    users = tmp_path / "kv"
    users.mkdir()
    (users / "mine").write_text("stays")
    own = users / "netgain-decide-x"
    arm = LaunchedServer(CANDIDATE, Program(command=lambda port: SLEEPS, shown=SLEEPS), tmp_path / "log")
    arm.beyond = Beyond(arm=CANDIDATE, folder=own, asked=str(users))
    for _ in range(2):
        await arm.start()
        assert list(own.iterdir()) == []
        (own / "left.kv").write_bytes(b"kv")
        await arm.stop()
        assert not own.exists()
    own.mkdir()
    (own / "of-a-run-that-was-killed.kv").write_bytes(b"kv")
    await arm.start()
    assert list(own.iterdir()) == []
    await arm.stop()
    assert [path.name for path in users.iterdir()] == ["mine"]


def test_the_candidate_alone_gets_the_folder_and_shows_the_one_that_was_named(tmp_path):
    asked = settings(tmp_path, tier=TierAsked(kind="disk", folder=str(tmp_path / "kv"), gib=1.0))
    flags = tiering_switch("netgain", {"tier": "disk", "gib": 1, "folder": str(tmp_path / "kv")}).flags
    arm = launch(asked, CANDIDATE, flags)
    assert arm.command[-1] == f"disk:{tmp_path / 'kv'}:1GiB"
    own = beyond_of(asked)
    assert own.folder.parent == tmp_path / "kv"
    assert own.told(flags)[-1] == f"disk:{own.folder}:1GiB"
    assert launch(asked, BASELINE, ()).beyond is None
    other = settings(tmp_path, output=tmp_path / "other", tier=asked.tier)
    assert beyond_of(other).folder != own.folder, "two runs at once share no folder"


async def test_what_runs_apart_is_emptied_by_its_command_before_each_start(tmp_path, leaves_no_process):
    log = tmp_path / "emptied"
    arm = LaunchedServer(CANDIDATE, Program(command=lambda port: SLEEPS, shown=SLEEPS), tmp_path / "log")
    arm.beyond = Beyond(arm=CANDIDATE, reset=f"echo once >> {shlex.quote(str(log))}")
    for starts in (1, 2):
        await arm.start()
        await arm.stop()
        assert log.read_text().splitlines() == ["once"] * starts


@pytest.mark.parametrize(
    ("command", "said"), [("echo no store >&2; exit 3", "code 3: no store"), ("exit 1", "wrote nothing to stderr")]
)
async def test_a_command_that_fails_keeps_the_arm_from_starting(tmp_path, command, said, leaves_no_process):
    arm = LaunchedServer(CANDIDATE, Program(command=lambda port: SLEEPS, shown=SLEEPS), tmp_path / "log")
    arm.beyond = Beyond(arm=CANDIDATE, reset=command)
    with pytest.raises(Unavailable, match=said):
        await arm.start()
    await arm.stop()


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="name another folder"):
        Beyond(arm=CANDIDATE, folder=tmp_path / "file" / "own", asked=str(tmp_path / "file")).begin()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dram", TierAsked()),
        ("dram:512MiB", TierAsked(gib=0.5)),
        ("lmcache:4GiB", TierAsked(kind="lmcache", gib=4.0)),
        ("disk:/tmp/a:b", TierAsked(kind="disk", folder="/tmp/a:b")),
        ("disk:/tmp/kv:2GiB", TierAsked(kind="disk", folder="/tmp/kv", gib=2.0)),
    ],
)
def test_tiers_are_read_as_they_are_named(text, expected):
    assert parse_tier(text) == expected
