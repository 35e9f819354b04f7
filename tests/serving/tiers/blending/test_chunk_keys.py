"""What decides where a chunk is kept, and what is refused when it is read."""

import subprocess
import sys

import msgspec
import pytest

from netgain.serving.blocks.keys import KeyChain, Namespace
from netgain.serving.tiers.blending.keys import chunk_key, chunk_root
from netgain.serving.tiers.blending.stored import ChunkForm
from netgain.serving.tiers.object import Reason, Refused

SPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bfloat16", numerics="n")
TOKENS = (5, 6, 7)


def form(root=None):
    return ChunkForm(
        root=root or chunk_root(SPACE, (1,), "bfloat16"), layers=2, kv_heads=1, head_dim=4, dtype="bfloat16"
    )


def payload(size=3 * 2 * 2 * 4 * 2):
    return bytes(range(size))


@pytest.mark.parametrize("field", list(Namespace.__struct_fields__))
def test_every_field_of_the_namespace_makes_other_chunks(field):
    other = chunk_root(msgspec.structs.replace(SPACE, **{field: "other"}), (1,), "bfloat16")
    assert other != chunk_root(SPACE, (1,), "bfloat16")


def test_lead_dtype_tenant_and_tokens_make_other_chunks():
    roots = [
        chunk_root(SPACE, (1,), "bfloat16"),
        chunk_root(SPACE, (), "bfloat16"),
        chunk_root(SPACE, (2,), "bfloat16"),
        chunk_root(SPACE, (1,), "float32"),
        chunk_root(SPACE, (1,), "bfloat16", b"tenant"),
    ]
    keys = {chunk_key(root, tokens) for root in roots for tokens in (TOKENS, (5, 7, 6), (5, 6), (5, 6, 7, 7))}
    assert len(keys) == len(roots) * 4


def test_a_chunk_is_never_taken_for_the_beginning_of_a_prompt():
    chain = KeyChain(SPACE.root(), len(TOKENS))
    chain.extend(TOKENS)
    assert chunk_key(chunk_root(SPACE, (), "bfloat16"), TOKENS) not in chain.keys


def test_keys_are_the_same_in_another_process():
    """LMCache/LMCache#2136"""
    code = "from tests.serving.tiers.blending.test_chunk_keys import form, TOKENS; print(form().address(TOKENS).hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == form().address(TOKENS).hex()


def test_what_was_packed_is_read_again():
    assert bytes(form().unpack(TOKENS, form().pack(TOKENS, payload()))) == payload()


def test_another_chunk_tenant_or_a_changed_bit_is_refused():
    data = form().pack(TOKENS, payload())
    with pytest.raises(Refused) as other_chunk:
        form().unpack((5, 6, 8), data)
    assert other_chunk.value.reason is Reason.WRONG_KEY
    with pytest.raises(Refused):
        form(chunk_root(SPACE, (1,), "bfloat16", b"tenant")).unpack(TOKENS, data)
    with pytest.raises(Refused) as damaged:
        form().unpack(TOKENS, data[:-1] + bytes([data[-1] ^ 1]))
    assert damaged.value.reason is Reason.DAMAGED


def test_a_payload_of_another_size_is_not_packed():
    with pytest.raises(ValueError, match="raw payload"):
        form().pack(TOKENS, payload()[:-2])
