"""A vault: what leaves the process says nothing, one tenant never reads another's KV, and a destroyed key is the end of all
copies."""

import asyncio
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import ShapedLink
from netgain.errors import UsageError
from netgain.ledger.clock import VirtualClock, WallClock
from netgain.serving.api.auth import Identity
from netgain.serving.blocks.keys import KeyChain, Namespace
from netgain.serving.blocks.scope import Scope
from netgain.serving.tiers.disk import DiskMedium
from netgain.serving.tiers.dram import DramMedium
from netgain.serving.tiers.envelope import Envelope, Owners, PlainEnvelope
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.object import Expected, Part, Reason, Refused, StoredObject, pack, unpack
from netgain.serving.tiers.shaped import ShapedMedium
from netgain.serving.tiers.stack import Stack
from netgain.serving.tiers.tier import Tier, TierOptions
from netgain.serving.tiers.vault import Vault
from netgain.serving.tiers.vault_file import destroy_keys, read_vault
from tests.serving.tiers.samples import SHAPE, stored

ACME, OTHER = Scope("acme").salt, Scope("other").salt
NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")
EXPECTED = Expected(shape=SHAPE)
KEPT_S = 3600.0


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    return Vault(tmp_path / "vault.json", unix_s=lambda: 1000.0)


def refusal(act: Callable[[], object]) -> Reason:
    with pytest.raises(Refused) as refused:
        act()
    return refused.value.reason


def block_keys(envelope: Envelope, salt: bytes, tokens: list[int]) -> list[bytes]:
    chain = KeyChain(envelope.root(NAMESPACE, salt), SHAPE.block_tokens)
    chain.extend(tokens)
    return chain.keys


def kv_for(envelope: Envelope, salt: bytes, key: bytes | None = None) -> StoredObject:
    one = msgspec.structs.replace(stored(7), root=envelope.root(NAMESPACE, salt))
    return one if key is None else msgspec.structs.replace(one, part=Part(key=key, first_layer=0, layers=2))


def wrapped(envelope: Envelope, one: StoredObject) -> bytes:
    """Its bytes in a tier."""
    ready = envelope.wrap(one)
    assert ready is not None
    return pack(ready)


def test_what_was_wrapped_for_a_tenant_is_unwrapped_for_it(vault: Vault) -> None:
    one = kv_for(vault, ACME)
    data = wrapped(vault, one)
    found = vault.unwrap(unpack(data, one.part.address(), EXPECTED))
    assert found == msgspec.structs.replace(one, written_s=1000)
    assert bytes(one.payload) not in data
    assert b"acme" not in data


def test_another_tenant_cannot_open_it(vault: Vault) -> None:
    sealed = unpack(wrapped(vault, kv_for(vault, ACME)))
    assert refusal(lambda: vault.open(sealed, "other")) is Reason.NO_KEY
    moved = msgspec.structs.replace(sealed, root=vault.root(NAMESPACE, OTHER))
    assert refusal(lambda: vault.unwrap(moved)) is Reason.NO_KEY
    assert refusal(lambda: PlainEnvelope().unwrap(sealed)) is Reason.NO_KEY


def test_what_somebody_planted_in_the_clear_is_refused(vault: Vault) -> None:
    planted = pack(kv_for(vault, ACME))
    assert refusal(lambda: vault.unwrap(unpack(planted))) is Reason.UNSEALED
    sealed_only = msgspec.structs.replace(EXPECTED, sealed=True)
    assert refusal(lambda: unpack(planted, None, sealed_only)) is Reason.UNSEALED


def test_kv_of_a_root_that_nobody_asked_for_stays_in_the_process(vault: Vault) -> None:
    assert vault.wrap(stored(7)) is None
    assert PlainEnvelope().wrap(stored(7)) is None


def test_of_too_many_roots_those_longest_not_asked_for_are_forgotten() -> None:
    owners = Owners(most=2)
    for root in (b"a", b"b", b"a", b"c"):
        owners.remember(root, root.decode())
    assert (owners.tenant(b"a"), owners.tenant(b"c")) == ("a", "c")
    with pytest.raises(KeyError):
        owners.tenant(b"b")


@given(st.data())
def test_a_forger_who_mends_every_checksum_is_found_out(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """LMCache/LMCache#4127: encryption at rest that was proposed there came to seal payloads alone, bound to no key or header.
    Here it shows whatever field of the header or byte of the payload is another: a block put under another key, a sooner
    date, ..."""
    vault = Vault(tmp_path_factory.getbasetemp() / "forger.json")
    sealed = vault.seal(stored(7), "acme")
    payload = bytearray(sealed.payload)
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    changes = {
        "part": stored(8).part,
        "root": bytes(32),
        "shape": msgspec.structs.replace(SHAPE, arrangement="V before K"),
        "tokens": 3,
        "codec": "int4",
        "written_s": (sealed.written_s or 0) + 1,
        "tenant": "acme",
        "payload": bytes(payload),
    }
    field = data.draw(st.sampled_from(sorted(changes)))
    forged = msgspec.structs.replace(sealed, **{field: changes[field]})
    if field != "tokens":  # the layout gives that away before the seal does
        forged = unpack(pack(forged))
    assert refusal(lambda: vault.open(forged, "acme")) is Reason.FORGED
    assert vault.open(sealed, "acme").payload == stored(7).payload


def test_the_same_kv_is_sealed_with_another_nonce_each_time(vault: Vault) -> None:
    seals = [vault.seal(stored(7), "acme").seal for _ in range(1000)]
    assert len({seal.nonce for seal in seals if seal}) == 1000
    assert len({seal.key_id for seal in seals if seal}) == 1


@pytest.mark.parametrize("sealed", [True, False])
@given(tokens=st.lists(st.integers(0, 9), min_size=4, max_size=16))
def test_tenants_share_no_block_whatever_the_prompt(
    tmp_path_factory: pytest.TempPathFactory, sealed: bool, tokens: list[int]
) -> None:
    """LMCache/LMCache#2878, sgl-project/sglang#37160: the salt held in the engine's cache, and not beyond it."""
    envelope = Vault(tmp_path_factory.getbasetemp() / "shared.json") if sealed else PlainEnvelope()
    identities = {name: Identity(tenant=name) for name in ("acme", "other")}
    ours = block_keys(envelope, identities["acme"].salt(None), tokens)
    assert ours == block_keys(envelope, identities["acme"].salt(None), tokens)
    for salt in (
        identities["other"].salt(None),
        identities["acme"].salt("of its own"),
        identities["other"].salt("acme"),
    ):
        assert not set(ours) & set(block_keys(envelope, salt, tokens))


def test_a_tenants_addresses_cannot_be_worked_out_from_its_name(tmp_path: Path) -> None:
    vaults = [Vault(tmp_path / name) for name in ("one.json", "two.json")]
    assert block_keys(vaults[0], ACME, [1, 2, 3, 4]) != block_keys(vaults[1], ACME, [1, 2, 3, 4])


async def test_the_same_salt_hits_and_another_misses_in_the_time_of_what_was_never_stored(vault: Vault) -> None:
    """vllm-project/vllm#16016: how long an answer takes told one tenant what another had asked."""
    clock = VirtualClock()
    down, up = ShapedLink(0.003, 1e6), ShapedLink(0.003, 1e6)
    tier = Tier("slow", ShapedMedium(DramMedium(LRU(1 << 20)), clock, down, up), clock)
    stack = Stack([tier], clock)
    secret = [1, 2, 3, 4, 5, 6, 7, 8]

    async def ask(salt: bytes, tokens: list[int]) -> tuple[int, float]:
        addresses = [kv_for(vault, salt, key).part.address() for key in block_keys(vault, salt, tokens)]
        asked_s = clock.now()
        await stack.locate(addresses)
        found = await stack.load(addresses)
        return sum(data is not None for data in found), clock.now() - asked_s

    async def main() -> None:
        for key in block_keys(vault, ACME, secret):
            one = kv_for(vault, ACME, key)
            stack.offer(one.part.address(), wrapped(vault, one))
        await stack.settle()
        assert (await ask(ACME, secret))[0] == 2
        hits, taken_s = await ask(OTHER, secret)
        never_hits, never_s = await ask(OTHER, [9] * 8)
        assert hits == never_hits == 0
        assert taken_s == pytest.approx(never_s, abs=1e-9)

    await clock.run(asyncio.ensure_future(main()))


def test_the_file_is_its_owners_alone_and_a_file_open_to_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new" / "vault.json"
    Vault(path).seal(stored(1), "acme")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        Vault(path)


@pytest.mark.parametrize("text", ["", "{}x", '{"version":2}', '{"version":1,"keys":[{}]}', '{"version":1,"what":1}'])
def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "vault.json"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(UsageError, match=r"vault .*vault\.json is damaged"):
        Vault(path)


def test_vaults_over_one_file_agree_on_a_tenants_key(tmp_path: Path) -> None:
    path = tmp_path / "vault.json"
    vaults = [Vault(path) for _ in range(8)]
    salts: list[bytes] = []
    threads = [threading.Thread(target=lambda one=one: salts.append(one.root(NAMESPACE, ACME))) for one in vaults]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(salts)) == 1
    data = wrapped(vaults[0], kv_for(vaults[0], ACME))
    assert vaults[1].unwrap(unpack(data)).payload == stored(7).payload


def test_a_destroyed_key_is_forgotten_by_running_processes_at_once(tmp_path: Path, vault: Vault) -> None:
    sealed, root = unpack(wrapped(vault, kv_for(vault, ACME))), vault.root(NAMESPACE, ACME)
    others = unpack(wrapped(vault, kv_for(vault, OTHER)))
    key = read_vault(tmp_path / "vault.json").keys[0].key
    gone = destroy_keys(tmp_path / "vault.json", frozenset({"acme"}), 2000)
    assert [named.tenant for named in gone] == ["acme"]
    assert refusal(lambda: vault.unwrap(sealed)) is Reason.NO_KEY
    assert vault.root(NAMESPACE, ACME) != root
    assert sealed.seal is not None
    assert vault.is_destroyed(sealed.seal)
    assert refusal(lambda: vault.tenant_of(sealed.seal)) is Reason.NO_KEY
    assert key not in (tmp_path / "vault.json").read_text()
    assert vault.unwrap(others).payload == stored(7).payload
    assert others.seal is not None
    assert vault.tenant_of(others.seal) == "other"


def test_kv_from_before_a_purge_is_not_sealed_with_the_key_after_it(tmp_path: Path, vault: Vault) -> None:
    """Another process purges while this one decodes for the tenant: what it computed before may not come back as new."""
    before, other = kv_for(vault, ACME), kv_for(vault, OTHER)
    assert vault.wrap(before) is not None
    assert vault.wrap(other) is not None
    destroy_keys(tmp_path / "vault.json", frozenset({"acme"}), 2000)
    assert vault.wrap(before) is None
    after = kv_for(vault, ACME)
    assert after.root != before.root
    assert vault.wrap(after) is not None
    assert vault.wrap(before) is None, "also once the tenant has a new key"
    assert vault.wrap(other) is not None


def test_kv_from_before_a_purge_is_not_sealed_where_the_key_is_a_new_one_already(tmp_path: Path, vault: Vault) -> None:
    before = kv_for(vault, ACME)
    destroy_keys(tmp_path / "vault.json", frozenset({"acme"}), 2000)
    Vault(tmp_path / "vault.json").root(NAMESPACE, ACME)
    assert vault.wrap(before) is None


def test_a_process_that_is_stopped_while_it_changes_the_vault_holds_up_nobody(tmp_path: Path, vault: Vault) -> None:
    known = vault.root(NAMESPACE, OTHER)
    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        holder.send_signal(signal.SIGSTOP)
        began_s = time.monotonic()
        root = vault.root(NAMESPACE, ACME)
        assert time.monotonic() - began_s < 10.0
        assert vault.root(NAMESPACE, OTHER) == known
        assert vault.unwrap(unpack(wrapped(vault, kv_for(vault, ACME)))).payload == stored(7).payload
        assert time.monotonic() - began_s < 10.0, "it is waited for once"
        with pytest.raises(UsageError, match="another process"):
            vault.forget(frozenset({"acme"}))
        assert time.monotonic() - began_s < 30.0
    finally:
        holder.kill()
        holder.wait()
    assert vault.root(NAMESPACE, ACME) == root
    assert vault.forget(frozenset({"other"})) == 1


_HOLD = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("holds", flush=True)
time.sleep(60)
"""


def test_the_old_keys_are_overwritten_where_they_lay(tmp_path: Path, vault: Vault) -> None:
    vault.seal(stored(1), "acme")
    path = tmp_path / "vault.json"
    key = read_vault(path).keys[0].key.encode()
    with path.open("rb") as old:  # holds the replaced file
        destroy_keys(path, None, 2000)
        assert key not in old.read()
    assert key not in path.read_bytes()


def test_a_copy_left_by_a_killed_writer_does_not_outlive_the_key(tmp_path: Path, vault: Vault) -> None:
    vault.seal(stored(1), "acme")
    left = tmp_path / ".vault.json-abc.part"
    left.write_bytes((tmp_path / "vault.json").read_bytes())
    destroy_keys(tmp_path / "vault.json", frozenset({"acme"}), 2000)
    assert [path.name for path in tmp_path.iterdir()] == ["vault.json"]


_MAKE_TENANTS = """
import pathlib, sys
from netgain.serving.tiers.vault import Vault
from tests.serving.tiers.samples import stored
one = stored(7)
vault = Vault(pathlib.Path(sys.argv[1]))
for number in range(100_000):
    vault.seal(one, f"{sys.argv[2]}-{number}")
"""


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "vault.json"
    Vault(path).seal(stored(1), "acme")
    first = read_vault(path).keys[0]
    for attempt in range(3):
        before = len(read_vault(path).keys)
        writer = subprocess.Popen([sys.executable, "-c", _MAKE_TENANTS, str(path), str(attempt)])
        while len(read_vault(path).keys) < before + 3:
            assert writer.poll() is None
        writer.kill()
        writer.wait()
        assert read_vault(path).keys[0] == first
    Vault(path).seal(stored(1), "after")
    assert list(tmp_path.iterdir()) == [path]


def test_without_its_file_nothing_fails_and_nothing_old_is_read(tmp_path: Path, vault: Vault) -> None:
    sealed = unpack(wrapped(vault, kv_for(vault, ACME)))
    (tmp_path / "vault.json").write_text("{")
    root = vault.root(NAMESPACE, ACME)
    assert refusal(lambda: vault.unwrap(sealed)) is Reason.NO_KEY
    again = unpack(wrapped(vault, kv_for(vault, ACME)))
    assert vault.unwrap(again).payload == stored(7).payload
    assert vault.root(NAMESPACE, ACME) == root


async def test_what_is_older_than_it_may_be_is_a_miss_and_removed(tmp_path: Path) -> None:
    now_s = 10_000.0
    envelope = PlainEnvelope(lambda: now_s)
    medium = DiskMedium(tmp_path, LRU(1 << 20))
    tier = Tier("disk", medium, WallClock(), TierOptions(retention_s=KEPT_S), unix_s=lambda: now_s)
    one = kv_for(envelope, ACME)
    address = one.part.address()
    await tier.put(address, wrapped(envelope, one))
    now_s += KEPT_S
    assert (await tier.get([address]))[0] is not None
    now_s += 1
    assert await tier.get([address]) == [None]
    assert tier.stats().refused == {Reason.EXPIRED: 1}
    assert await tier.keys() == []
    await tier.close()


async def test_what_is_dated_in_the_future_has_no_age_where_age_matters() -> None:
    """A clock that was wrong, here or there, must not keep KV for longer than it may be kept."""
    now_s = 10_000.0
    envelope = PlainEnvelope(lambda: now_s + 301)
    for retention_s, found in ((None, True), (KEPT_S, False)):
        tier = Tier(
            "dram", DramMedium(LRU(1 << 20)), WallClock(), TierOptions(retention_s=retention_s), unix_s=lambda: now_s
        )
        one = kv_for(envelope, ACME)
        await tier.put(one.part.address(), wrapped(envelope, one))
        assert ((await tier.get([one.part.address()]))[0] is not None) == found
    assert tier.stats().refused == {Reason.EXPIRED: 1}


def test_what_passes_from_tier_to_tier_grows_no_younger(vault: Vault) -> None:
    for envelope in (vault, PlainEnvelope(lambda: 2000.0)):
        one = msgspec.structs.replace(kv_for(envelope, ACME), written_s=7)
        ready = envelope.wrap(one)
        assert ready is not None
        assert ready.written_s == 7


async def test_what_does_not_say_its_age_is_too_old_where_age_matters() -> None:
    tier = Tier("dram", DramMedium(LRU(1 << 20)), WallClock(), TierOptions(retention_s=KEPT_S))
    await tier.put(stored(1).part.address(), pack(stored(1)))
    assert await tier.get([stored(1).part.address()]) == [None]
    assert tier.stats().refused == {Reason.EXPIRED: 1}


def test_every_form_says_when_it_was_written_and_whose_it_is_where_that_is_no_secret(vault: Vault) -> None:
    plain = PlainEnvelope(lambda: 5.9)
    sealed, clear = (unpack(wrapped(envelope, kv_for(envelope, ACME))) for envelope in (vault, plain))
    assert (sealed.written_s, sealed.tenant) == (1000, None)
    assert (clear.written_s, clear.tenant) == (5, "acme")
