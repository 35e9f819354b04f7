"""A password in the address of a tier is in nothing that is shown, whatever signs it is made of and whatever is wrong with it."""

import pytest

from netgain.errors import UsageError
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
