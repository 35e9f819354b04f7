"""What decides where a chunk is kept, and what is refused when it is read."""

import subprocess
import sys

import msgspec
import pytest

from netgain.serving.blocks.keys import KeyChain, Namespace
from netgain.serving.tiers.blending.keys import chunk_key, chunk_namespace
from netgain.serving.tiers.blending.stored import ChunkForm
from netgain.serving.tiers.object import Reason, Refused, pack, unpack

SPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bfloat16", numerics="n")
TOKENS = (5, 6, 7)
FORM = ChunkForm(layers=2, kv_heads=1, head_dim=4, dtype="bfloat16")


def root(space=SPACE, lead=(1,), dtype="bfloat16", salt=b""):
    return chunk_namespace(space, lead, dtype).root(salt)


def address():
    return FORM.part(root(), TOKENS).address()


def payload(size=3 * 2 * 2 * 4 * 2):
    return bytes(range(size))


@pytest.mark.parametrize("field", list(Namespace.__struct_fields__))
def test_every_field_of_the_namespace_makes_other_chunks(field):
    assert root(msgspec.structs.replace(SPACE, **{field: "other"})) != root()


def test_lead_dtype_tenant_and_tokens_make_other_chunks():
    roots = [root(), root(lead=()), root(lead=(2,)), root(lead=(1, 2)), root(dtype="float32"), root(salt=b"tenant")]
    keys = {chunk_key(one, tokens) for one in roots for tokens in (TOKENS, (5, 7, 6), (5, 6), (5, 6, 7, 7))}
    assert len(keys) == len(roots) * 4


def test_a_chunk_is_never_taken_for_the_beginning_of_a_prompt():
    for space in (SPACE, chunk_namespace(SPACE, (), "bfloat16")):
        chain = KeyChain(space.root(), len(TOKENS))
        chain.extend(TOKENS)
        assert chunk_key(root(lead=()), TOKENS) not in chain.keys


def test_keys_are_the_same_in_another_process():
    """LMCache/LMCache#2136"""
    code = "from tests.serving.tiers.blending.test_chunk_keys import address; print(address().hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == address().hex()


def test_what_was_packed_is_read_again_under_its_own_address_alone():
    data = pack(FORM.stored(root(), TOKENS, payload()))
    assert bytes(unpack(data, address()).payload) == payload()
    with pytest.raises(Refused) as other_chunk:
        unpack(data, FORM.part(root(), (5, 6, 8)).address())
    assert other_chunk.value.reason is Reason.WRONG_KEY
    with pytest.raises(Refused):
        unpack(data, FORM.part(root(salt=b"tenant"), TOKENS).address())


def test_a_payload_of_another_size_is_not_packed():
    with pytest.raises(ValueError, match="raw payload"):
        pack(FORM.stored(root(), TOKENS, payload()[:-2]))
