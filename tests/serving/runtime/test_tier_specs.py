"""A password in the address of a tier is in nothing that is shown, whatever signs it is made of and whatever is wrong with it."""

import re

import pytest

from netgain.errors import UsageError
from netgain.serving.runtime.build_tiers import check_room
from netgain.serving.runtime.tier_specs import parse_tier, shown
from netgain.serving.tiers.eviction import LRU
from netgain.serving.tiers.locations import open_location, without_password


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("valkey://:p4ss@host:6379/0", "valkey://***@host:6379/0"),
        ("valkey://user:p4@ss@host:6379/0?ttl=5", "valkey://***@host:6379/0?ttl=5"),
        ("rediss://:p4/ss@host/0", "rediss://***@host/0"),
        ("valkey://:p4?ss#@host:6379/0", "valkey://***@host:6379/0"),
        ("valkey:p4ss@host", "valkey:***@host"),
        ("s3://bucket/p?endpoint=http://me:p4ss@minio:9000", "s3://***@minio:9000"),
        ("valkey://host:6379/0", "valkey://host:6379/0"),
        ("disk:/data//me@home:10GiB", "disk:/data//me@home:10GiB"),
    ],
)
def test_what_stands_before_the_host_is_not_shown(tier: str, said: str) -> None:
    assert shown(tier) == said
    if "://" in tier:
        assert without_password(tier) == said


@pytest.mark.parametrize(
    "tier",
    [
        "valkey://:p4ss@host:6379/0?speed=3",
        "valkey://:p4ss@host:6379/0?bandwidth=fast",
        "valkey://:p4ss@host:6379/0?codec=zst",
        "valkey://:p4ss@host:6379/0?write=back&admit=second-use",
        "valky://:p4ss@host:6379/0",
        "valkey:p4ss@host",
        "valkey://:x/p4ss@host:6379/0",
        "valkey://:x?p4ss@host:6379/0",
        "valkey://:x#p4ss@host:6379/0",
    ],
)
def test_what_is_wrong_is_said_without_the_password(tier: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_tier(tier)
    assert "***@host" in str(error.value)
    assert "p4ss" not in str(error.value)


def test_a_password_with_an_at_is_read_and_one_that_would_be_cut_says_how_to_write_it() -> None:
    assert parse_tier("valkey://:p@ss@host:1/0").where == "redis://:p@ss@host:1/0"
    assert parse_tier("valkey://:p%2Fss@host:1/0").where == "redis://:p%2Fss@host:1/0"
    with pytest.raises(ValueError, match="%2F"):
        parse_tier("valkey://:p/ss@host:1/0")


@pytest.mark.parametrize(
    "location", ["valkey://:x/p4ss@host:6379/0", "tape://:p4ss@host", "s3://?endpoint=http://:p4ss@host"]
)
def test_the_commands_do_not_show_it_either(location: str) -> None:
    pytest.importorskip("redis")
    pytest.importorskip("obstore")
    with pytest.raises(UsageError) as error:
        open_location(location, LRU(1))
    assert "p4ss" not in str(error.value)


@pytest.mark.parametrize(
    ("tier", "said"),
    [
        ("valkey://host:6379/abc", "'abc' is no database"),
        ("valkey://host:6379/-1", "'-1' is no database"),
        ("valkey://host:6379/0/1", "'0/1' is no database"),
        ("redis://:secret@host:99999/0", "'99999' is no port"),
        ("rediss://host:0/0", "'0' is no port"),
        ("valkey://host:/0", "'' is no port"),
        ("valkey://[::1/0", "names no server"),
        ("s3://bucket/p?endpoint=minio:9000", "the endpoint is the URL"),
        ("s3://bucket/p?endpoint=http://", "the endpoint is the URL"),
        ("s3://bucket/p?endpoint=http://minio:port", "the endpoint is the URL"),
    ],
)
def test_an_address_that_is_none_is_refused_and_never_taken_for_a_default(tier: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        parse_tier(tier)
    assert "secret" not in str(error.value)
    with pytest.raises(UsageError, match=re.escape(said)) as refused:
        open_location(tier, LRU(1))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("tier", ["valkey://host", "valkey://host/", "redis://[::1]:6379/3", "rediss://u:p%2F@h:1/15"])
def test_addresses_of_servers_are_taken_as_they_are(tier: str) -> None:
    scheme = "rediss" if tier.startswith("rediss") else "redis"
    assert parse_tier(tier).where == f"{scheme}:{tier.partition(':')[2]}"


def test_an_option_that_is_said_twice_or_that_a_location_does_not_have_is_refused() -> None:
    """The second would win in silence; objects under the default prefix would be purged instead of those that were meant."""
    with pytest.raises(ValueError, match="says eviction twice"):
        parse_tier("dram:1GiB?eviction=arc&eviction=lru")
    with pytest.raises(ValueError, match="says ttl twice"):
        parse_tier("valkey://host/0?ttl=0&ttl=5s")
    with pytest.raises(UsageError, match="no option 'prefx'; it has prefix, endpoint, region"):
        open_location("valkey://host/0?prefx=mine:", LRU(1))
    pytest.importorskip("redis")
    open_location("valkey://host/0?prefix=mine:&ttl=5s&codec=zstd", LRU(1))


@pytest.mark.parametrize("tier", ["valkey://host:6379/0", "rediss://host/1", "s3://bucket/kv"])
def test_a_server_or_bucket_may_have_a_capacity_of_netgains_own(tier: str) -> None:
    assert parse_tier(tier).capacity_bytes == 0
    assert parse_tier(f"{tier}?capacity=10GiB&admit=second-use").capacity_bytes == 10 << 30
    with pytest.raises(ValueError, match="says capacity twice"):
        parse_tier(f"{tier}?capacity=10GiB&capacity=1GiB")
    with pytest.raises(ValueError, match="is no size"):
        parse_tier(f"{tier}?capacity=0")
    with pytest.raises(ValueError, match="has no option 'capacity'"):
        parse_tier("disk:/var/kv:1GiB?capacity=1GiB")


def test_a_capacity_without_room_for_one_block_is_refused() -> None:
    with pytest.raises(UsageError, match="valkey tier of 1 KiB has no room for one block"):
        check_room([parse_tier("valkey://host/0?capacity=1KiB")], [2000])
    check_room([parse_tier("valkey://host/0"), parse_tier("valkey://host/1?capacity=1MiB")], [2000])
