"""The file of API keys: what is in it, who may read it, and how it changes."""

import os
import stat
from concurrent.futures import ProcessPoolExecutor

import pytest

from netgain.cli.main import run
from netgain.errors import UsageError
from netgain.serving.api.keys import KeyLimits, default_file, new_key, read_keys, revoke_key, split_key


def test_a_key_is_stored_as_a_salted_hash_in_a_file_for_its_owner_alone(tmp_path):
    path = tmp_path / "deep" / "keys.json"
    key = new_key(path, "acme", KeyLimits(max_in_flight=2))
    again = new_key(path, "acme", KeyLimits())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = read_keys(path)
    key_id, secret = split_key(key)
    assert (first.id, first.tenant, first.limits.max_in_flight) == (key_id, "acme", 2)
    assert secret not in path.read_text()
    assert first.verify(secret)
    assert not second.verify(secret)
    assert not first.verify(split_key(again)[1])
    assert [file.name for file in path.parent.iterdir()] == ["keys.json"], "parts of files are left"


def test_a_revoked_key_stays_in_the_file_as_revoked(tmp_path):
    path = tmp_path / "keys.json"
    key = new_key(path, "acme", KeyLimits())
    assert revoke_key(path, split_key(key)[0]).revoked
    assert revoke_key(path, key).revoked == read_keys(path)[0].revoked  # again, named by the whole key
    with pytest.raises(UsageError, match="'00000000'"):
        revoke_key(path, "00000000")


def test_commands_that_change_the_file_at_once_lose_no_key(tmp_path):
    path = tmp_path / "keys.json"
    with ProcessPoolExecutor(2) as pool:
        keys = list(pool.map(new_key, [path] * 6, [f"tenant{i}" for i in range(6)], [KeyLimits()] * 6))
    assert {entry.id for entry in read_keys(path)} == {split_key(key)[0] for key in keys}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_file_that_others_have_access_to_is_refused(tmp_path, mode):
    path = tmp_path / "keys.json"
    new_key(path, "acme", KeyLimits())
    path.chmod(mode)
    with pytest.raises(UsageError, match=f"mode {mode:04o}.*chmod 600"):
        read_keys(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b'"version": 1', b'"version": 2'),
        lambda data: data.replace(b'"tenant"', b'"owner"'),
        lambda data: data.replace(b'"acme"', b'"ac\xffme"'),
        lambda data: data.replace(b'"acme"', b'"a b"'),
        lambda data: data.replace(b'"salt": "', b'"salt": "zz'),
        lambda data: b"[]",
    ],
)
def test_a_damaged_file_is_one_clear_error(tmp_path, damage):
    path = tmp_path / "keys.json"
    new_key(path, "acme", KeyLimits())
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before
    with pytest.raises(UsageError, match=r"keys\.json is damaged"):
        read_keys(path)
    with pytest.raises(UsageError, match=r"keys\.json is damaged"):
        new_key(path, "acme", KeyLimits())  # and is not overwritten


def test_the_command_shows_a_key_once_and_never_again(tmp_path, capsys):
    file = ["--file", str(tmp_path / "keys.json")]
    assert run(["keys", "new", "--tenant", "acme", *file, "--requests-per-minute", "30", "--priority-floor", "-1"]) == 0
    key = capsys.readouterr().out.strip()
    key_id, secret = split_key(key)
    assert run(["keys", "ls", *file]) == 0
    listed = capsys.readouterr().out
    assert key_id in listed
    assert "requests per minute 30, priority floor -1" in listed
    assert secret not in listed
    assert listed.splitlines()[1].split()[3:5] == ["active", "no"]
    assert run(["keys", "new", "--tenant", "us", *file, "--operator"]) == 0
    operator_id, _ = split_key(capsys.readouterr().out.strip())
    assert run(["keys", "revoke", operator_id, *file]) == 0
    assert run(["keys", "ls", *file]) == 0
    heads, *rows = (line.split() for line in capsys.readouterr().out.splitlines()[-3:])
    assert heads == ["id", "tenant", "created", "state", "operator", "limits"]
    assert [row[3] for row in rows] == ["active", "revoked"]
    assert rows[1][5] == "yes", "that it was an operator's key is told of a revoked one, too"


def test_the_hint_about_an_unknown_id_names_the_file(tmp_path, capsys):
    path = tmp_path / "keys.json"
    assert run(["keys", "new", "--tenant", "acme", "--file", str(path)]) == 0
    assert run(["keys", "revoke", "12345678", "--file", str(path)]) == 2
    assert f"netgain keys ls --file {path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["new", "--tenant", "a b"], "'a b'"),
        (["new", "--tenant", "acme", "--max-in-flight", "0"], "--max-in-flight"),
        (["ls"], "netgain keys new"),
        (["revoke", "12345678"], "keys.json"),
    ],
)
def test_what_a_command_cannot_do_is_one_line(tmp_path, capsys, arguments, names):
    assert run(["keys", *arguments, "--file", str(tmp_path / "keys.json")]) == 2
    error = capsys.readouterr().err
    assert names in error
    assert len(error.splitlines()) == 1


def test_a_pipe_or_a_loop_of_links_is_no_key_file_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, said in (("pipe", "no plain file"), ("loop", "Too many levels")):
        with pytest.raises(UsageError, match=said):
            read_keys(tmp_path / name)
    with pytest.raises(UsageError, match="no plain file"):
        new_key(tmp_path / "pipe", "acme", KeyLimits())


def test_without_a_home_the_file_has_to_be_named():
    with pytest.raises(UsageError, match="--file"):
        default_file({"XDG_CONFIG_HOME": "~nobody-of-this-name/x"})
