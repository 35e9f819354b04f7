"""What is sent of an item, and to whom its chunks are told."""

import msgspec
import pytest

from netgain.measuring.client.body import prepare
from netgain.measuring.client.endpoint import ModelCard, joins_chunks
from netgain.measuring.client.options import Options
from netgain.measuring.workload.item import Item

ITEM = Item(id="1", category="c", max_tokens=4, prompt="Read: Ann keeps bees. Who?", chunks=("Ann keeps bees.",))


def sent(to_netgain: bool, joins: bool) -> dict:
    return msgspec.json.decode(prepare(ITEM, "m", Options(), to_netgain, joins).body)


def test_every_server_gets_the_same_text_and_only_those_that_join_them_are_told_chunks() -> None:
    joining, plain, other = sent(True, True), sent(True, False), sent(False, False)
    assert joining["prompt"] == plain["prompt"] == other["prompt"] == ITEM.prompt
    assert joining["netgain"]["chunks"] == list(ITEM.chunks)
    assert "chunks" not in plain["netgain"]
    assert "netgain" not in other


@pytest.mark.parametrize("told", [None, {}, {"blending": {"enabled": False}}, {"blending": "yes"}])
def test_a_server_that_does_not_say_so_joins_nothing(told) -> None:
    assert not joins_chunks([ModelCard(id="m", netgain=told)])
    assert joins_chunks([ModelCard(id="m", netgain=told), ModelCard(id="n", netgain={"blending": {"enabled": True}})])
