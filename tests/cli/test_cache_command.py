"""`netgain cache` on a folder, a Valkey server and a bucket, with and without the vault that seals what is there."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netgain.cli.main import run
from netgain.serving.blocks.keys import Namespace
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.envelope import Envelope, PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.medium import Medium
from netgain.serving.tiers.object import Part, pack, unpack
from netgain.serving.tiers.objects import ObjectsMedium
from netgain.serving.tiers.remote import RemoteMedium, RemoteOptions
from netgain.serving.tiers.shared_memory import folder_of
from netgain.serving.tiers.vault import Vault
from netgain.serving.tiers.vault_file import read_vault
from tests.serving.tiers.samples import stored
from tests.serving.tiers.servers import Server, s3, valkey
from tests.serving.tiers.test_media import s3_options

NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")


Told = Callable[..., Any]


def fill(medium: Medium, envelope: Envelope, tenant: str | None, blocks: int) -> list[bytes]:
    """Put blocks of a tenant there; their addresses."""

    async def work() -> list[bytes]:
        root = envelope.root(NAMESPACE, Scope(tenant).salt)
        addresses = []
        for number in range(blocks):
            part = Part(key=Namespace.root(NAMESPACE, f"{tenant}{number}".encode()), first_layer=0, layers=2)
            ready = envelope.wrap(msgspec.structs.replace(stored(number), part=part, root=root))
            assert ready is not None
            await medium.write(part.address(), pack(ready))
            addresses.append(part.address())
        await medium.close()
        return addresses

    return asyncio.run(work())


def file_of(folder: Path, address: bytes) -> Path:
    return folder / address.hex()[:2] / f"{address.hex()}.kv"


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A folder with three blocks of acme and two of other, sealed, and one of nobody, in the clear."""
    folder = tmp_path / "tier"
    folder.mkdir()
    vault = Vault(tmp_path / "vault.json")
    fill(DiskMedium(folder, LRU(1 << 30)), vault, "acme", 3)
    fill(DiskMedium(folder, LRU(1 << 30)), vault, "other", 2)
    fill(DiskMedium(folder, LRU(1 << 30)), PlainEnvelope(), None, 1)
    return folder


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run the command with --json and read what it printed; it has to end with `code`."""

    def ask(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert run(["cache", *arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return ask


def test_stats_count_by_tenant_where_the_vault_is_given(tier: Path, told: Told) -> None:
    (without,) = told("stats", str(tier))
    assert (without["objects"], without["sealed"], without["roots"]) == (6, 5, 3)
    assert {name: held["objects"] for name, held in without["tenants"].items()} == {"(sealed)": 5, "(no tenant)": 1}
    (within,) = told("stats", str(tier), "--vault", str(tier.parent / "vault.json"))
    assert {name: held["objects"] for name, held in within["tenants"].items()} == {
        "acme": 3,
        "other": 2,
        "(no tenant)": 1,
    }
    assert within["bytes"] == sum(path.stat().st_size for path in tier.rglob("*.kv"))


def test_looking_changes_nothing_in_the_folder(tier: Path, told: Told) -> None:
    (tier / "aa").mkdir(exist_ok=True)
    (tier / "aa" / f"{'aa' * 32}.1-1.tmp").write_bytes(b"left by a dead writer")
    (tier / "notes").write_text("not netgain's")
    before = {path: path.stat().st_mtime_ns for path in tier.rglob("*") if path.is_file()}
    (content,) = told("stats", str(tier))
    told("ls", str(tier))
    told("verify", str(tier))
    assert {path: path.stat().st_mtime_ns for path in tier.rglob("*") if path.is_file()} == before
    assert content["foreign"] == 1


def test_ls_lists_a_tenants_objects_and_never_what_is_in_them(tier: Path, told: Told) -> None:
    rows = told("ls", str(tier), "--vault", str(tier.parent / "vault.json"), "--tenant", "acme")
    assert len(rows) == 3
    assert {row["tenant"] for row in rows} == {"acme"}
    assert all(file_of(tier, bytes.fromhex(row["address"])).stat().st_size == row["bytes"] for row in rows)
    assert len(told("ls", str(tier), "--limit", "2")) == 2


def test_verify_reports_what_is_refused_by_reason_and_removes_it_when_asked(tier: Path, told: Told) -> None:
    files = sorted(tier.rglob("*.kv"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    changed = bytearray(files[1].read_bytes())
    changed[-1] ^= 1
    files[1].write_bytes(changed)
    files[2].write_bytes(b"something else")
    files[3].write_bytes(files[4].read_bytes())
    (found,) = told("verify", str(tier), code=1)
    assert found["refused"] == {"torn": 1, "damaged": 1, "foreign": 1, "wrong_key": 1}
    assert (found["objects"], found["removed"]) == (2, None)
    (found,) = told("verify", str(tier), "--remove")
    assert found["removed"] == 4
    assert sorted(tier.rglob("*.kv")) == files[4:]


def test_verify_with_the_vault_finds_what_a_forger_resealed(tier: Path, told: Told) -> None:
    """Checksums that were mended do not help."""
    vault = tier.parent / "vault.json"
    path = next(path for path in sorted(tier.rglob("*.kv")) if unpack(path.read_bytes()).seal is not None)
    sealed = unpack(path.read_bytes())
    path.write_bytes(pack(msgspec.structs.replace(sealed, written_s=(sealed.written_s or 0) + 1)))
    (found,) = told("verify", str(tier))
    assert (found["refused"], found["unopened"]) == ({}, 5)
    (found,) = told("verify", str(tier), "--vault", str(vault), code=1)
    assert (found["refused"], found["unopened"]) == ({"forged": 1}, 0)


def test_purging_a_tenant_destroys_its_key_and_removes_what_it_sealed(tier: Path, told: Told) -> None:
    vault = tier.parent / "vault.json"
    copy = {path: path.read_bytes() for path in tier.rglob("*.kv")}
    found = told("purge", str(tier), "--tenant", "acme", "--vault", str(vault), "--yes")
    assert (found["destroyed_keys"], found["locations"][0]["removed"]) == (1, 3)
    assert [key.tenant for key in read_vault(vault).keys] == ["other"]
    for path, data in copy.items():  # a medium that was down meanwhile comes back with all of it
        path.write_bytes(data)
    (verified,) = told("verify", str(tier), "--vault", str(vault), code=1)
    assert verified["refused"] == {"no_key": 3}
    again = told("purge", str(tier), "--tenant", "acme", "--vault", str(vault), "--yes")
    assert (again["destroyed_keys"], again["locations"][0]["removed"]) == (0, 3)
    (content,) = told("stats", str(tier), "--vault", str(vault))
    assert set(content["tenants"]) == {"other", "(no tenant)"}


def test_a_place_that_does_not_answer_does_not_keep_the_key_alive(
    tier: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vault = tier.parent / "vault.json"
    places = ["valkey://127.0.0.1:1/0", str(tier)]
    assert run(["cache", "purge", *places, "--tenant", "acme", "--vault", str(vault), "--yes"]) == 1
    told = capsys.readouterr()
    assert "1 key destroyed" in told.out
    assert "3 of 6 objects removed" in told.out
    assert "does not answer" in told.out
    assert "run the same again when it answers" in told.err


def test_without_the_vault_sealed_objects_stay_and_the_purge_has_not_succeeded(
    tier: Path, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script that forgets a tenant may not take that for done."""
    found = told("purge", str(tier), "--tenant", "acme", "--yes", code=1)["locations"][0]
    assert (found["removed"], found["unknown"]) == (0, 5)
    assert run(["cache", "purge", str(tier), "--tenant", "acme", "--yes"]) == 1
    assert "not known whose 5 sealed objects are: give their vault" in capsys.readouterr().err
    told("purge", str(tier), "--older-than", "1d", "--yes")
    assert told("purge", str(tier), "--all", "--yes")["locations"][0]["removed"] == 6


def test_what_is_older_or_undated_goes_by_age(tmp_path: Path, told: Told) -> None:
    now = 1.0e9
    fill(DiskMedium(tmp_path, LRU(1 << 30)), PlainEnvelope(lambda: now), "old", 2)
    fill(DiskMedium(tmp_path, LRU(1 << 30)), PlainEnvelope(), "new", 1)
    found = told("purge", str(tmp_path), "--older-than", "1d", "--yes")
    assert found["locations"][0]["removed"] == 2
    assert [row["tenant"] for row in told("ls", str(tmp_path))] == ["new"]


def test_all_removes_everything_that_is_netgains(tier: Path, told: Told) -> None:
    (tier / "notes").write_text("not netgain's")
    next(iter(tier.rglob("*.kv"))).write_bytes(b"damaged")
    told("purge", str(tier), "--all", "--vault", str(tier.parent / "vault.json"), "--yes")
    assert [path.name for path in tier.rglob("*") if path.is_file()] == ["notes"]
    assert read_vault(tier.parent / "vault.json").keys == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stats", "/no/such/folder"], "does not exist"),
        (["stats", __file__], "is no folder"),
        (["ls", "ftp://host/x"], "is no place for KV"),
        (["ls", "s3://"], "names no bucket"),
        (["purge", "."], "one of --tenant NAME, --all or --older-than TIME"),
        (["purge", ".", "--all", "--tenant", "x"], "one of --tenant NAME, --all or --older-than TIME"),
        (["purge", "--all"], "name at least one location"),
        (["purge", ".", "--all"], "add --yes"),
        (["purge", ".", "--older-than", "1d", "--vault", "v"], "leave --vault out"),
        (["verify", ".", "--vault", "/no/vault"], "cannot read the vault"),
        (["curve", "/no/trace"], "cannot read"),
        (["curve", __file__], "no recording"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["cache", *arguments]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert len(told.err.splitlines()) == 1


def test_a_password_is_never_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "ls", "valkey://user:hunter2@127.0.0.1:1/0"]) == 1
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err


@pytest.mark.parametrize("kind", ["valkey", "s3"])
def test_servers_and_buckets_are_looked_into_and_purged_alike(kind: str, tmp_path: Path) -> None:
    vault = tmp_path / "vault.json"
    with valkey() if kind == "valkey" else s3("netgain") as server:
        fill(_medium(kind, server), Vault(vault), "acme", 70)
        fill(_medium(kind, server), PlainEnvelope(), "plain", 2)
        location = f"valkey://127.0.0.1:{server.port}/0?prefix=x:"
        if kind == "s3":
            location = f"s3://netgain/x?endpoint=http://127.0.0.1:{server.port}&region=us-east-1"
        of_tenants = ["--vault", str(vault)]
        (content,), (verified,), purged, rows = _told(
            ["stats", location, *of_tenants],
            ["verify", location, *of_tenants],
            ["purge", location, "--tenant", "acme", *of_tenants, "--yes"],
            ["ls", location],
        )
    assert {name: held["objects"] for name, held in content["tenants"].items()} == {"acme": 70, "plain": 2}
    assert (verified["objects"], verified["refused"]) == (72, {})
    assert purged["locations"][0]["removed"] == 70
    assert [row["tenant"] for row in rows] == ["plain", "plain"]


def _medium(kind: str, server: Server) -> Medium:
    if kind == "valkey":
        return RemoteMedium(f"redis://127.0.0.1:{server.port}/0", RemoteOptions(prefix="x:"))
    return ObjectsMedium("s3://netgain", s3_options(server.port, prefix="x"))


_RUN = """
import json, sys
from netgain.cli.main import run
for arguments in json.loads(sys.argv[1]):
    assert run(["cache", *arguments, "--json"]) == 0
    print("----")
"""


def _told(*commands: list[str]) -> list[Any]:
    """As `told`, in a process whose environment has the bucket's credentials."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    done = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(commands)],
        env={**os.environ, **keys},
        stdout=subprocess.PIPE,
        check=True,
    )
    return [json.loads(text) for text in done.stdout.decode().split("----\n")[:-1]]


def test_a_curve_says_what_sizes_give_beside_the_device(tmp_path: Path, told: Told) -> None:
    trace = tmp_path / "t.jsonl"
    rows = [
        {"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [n % 3, 10 + n % 3]} for n in range(9)
    ]
    trace.write_text("\n".join(map(json.dumps, rows)))
    sizes = ["--token-bytes", "2MiB", "--size", "4GiB", "--size", "6GiB", "--device", "4GiB"]
    found = told("curve", str(trace), *sizes)
    assert [point["hit_rate"] for point in found["points"]] == [0.0, pytest.approx(12 / 18)]
    assert [point["beyond_device"] for point in found["points"]] == [0.0, pytest.approx(12 / 18)]
    assert (found["near_ideal"]["bytes"], found["ideal"]["hit_tokens"]) == (6 * 2**30, 1024.0)
    assert "token_bytes" in found
    assert found["device_hit_rate"] == 0.0


def test_shared_memory_is_a_location(told: Told) -> None:
    name = f"test-{os.getpid()}"
    folder = folder_of(name)
    try:
        addresses = fill(DiskMedium(folder, LRU(1 << 30)), PlainEnvelope(), "acme", 3)
        file_of(folder, addresses[0]).write_bytes(b"NGKV")
        assert told("stats", f"shm:{name}")[0]["objects"] == 2
        assert len(told("ls", f"shm:{name}")) == 2
        assert told("verify", f"shm:{name}", "--remove")[0]["removed"] == 1
        assert told("purge", f"shm:{name}", "--tenant", "acme", "--yes")["locations"][0]["removed"] == 2
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert run(["cache", "stats", f"shm:{name}"]) == 2
    assert run(["cache", "stats", "shm:../x"]) == 2


def test_stats_of_a_server_say_what_its_own_limit_means_for_kv(told: Told) -> None:
    with valkey("--maxmemory", "50mb", "--maxmemory-policy", "noeviction") as server:
        location = f"valkey://127.0.0.1:{server.port}/0"
        (notice,) = told("stats", location)[0]["notices"]
        assert "evicts nothing" in notice
        assert told("stats", f"{location}?capacity=1MiB")[0]["notices"] == []
