"""A block's key changes with everything that decides its bits, and with nothing else."""

import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.blocks.keys import KeyChain, Namespace

NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")
SALT = b"tenant"
# Computed once and kept: other processes, machines and versions must come to the same keys while the domain is the same.
FIRST = "d366b11cb9c0d35a8caed93f29ebfab0aaace0d8e8529c8f2d23bca514997b37"
SECOND = "0df97e66abf6b93ce95cad4531ad017377bf7d5573cbfc9c97fda63894782943"


def keys(namespace: Namespace = NAMESPACE, salt: bytes = SALT, tokens: range = range(8), block: int = 4) -> list[str]:
    chain = KeyChain(namespace.root(salt), block)
    chain.extend(tokens)
    return [key.hex() for key in chain.keys]


def test_keys_are_those_that_were_written_down() -> None:
    assert keys() == [FIRST, SECOND]


def test_keys_are_the_same_in_every_process() -> None:
    """LMCache/LMCache#1139, LMCache/LMCache#2136: the chain's seed, or a hash of None, differed per process."""
    program = (
        "from netgain.serving.blocks.keys import *\n"
        "c = KeyChain(Namespace(weights='w', tokenizer='t', rope='r', kv_dtype='bf16', numerics='n').root(b'tenant'), 4)\n"
        "c.extend(range(8)); print(*[k.hex() for k in c.keys])"
    )
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == [FIRST, SECOND]


@pytest.mark.parametrize("field", Namespace.__struct_fields__)
def test_every_field_of_the_namespace_changes_every_key(field: str) -> None:
    """vllm-project/vllm#42125: an adapter swapped under the same name was served the old one's KV. InternLM/lmdeploy#4917:
    KV of weights that had changed was."""
    other = msgspec.structs.replace(NAMESPACE, **{field: getattr(NAMESPACE, field) + "2"})
    assert not set(keys(other)) & set(keys())


@given(st.binary(max_size=40))
def test_another_salt_shares_no_key(salt: bytes) -> None:
    """sgl-project/sglang#37160: the external store keyed on tokens alone."""
    assert bool(set(keys(salt=salt)) & set(keys())) == (salt == SALT)


@given(st.lists(st.text(max_size=3), min_size=6, max_size=6), st.binary(max_size=3))
def test_text_moved_from_one_field_to_the_next_is_another_namespace(fields: list[str], salt: bytes) -> None:
    names = Namespace.__struct_fields__
    one = Namespace(**dict(zip(names, fields, strict=True)))
    joined = ["".join(fields), *[""] * 5]
    other = Namespace(**dict(zip(names, joined, strict=True)))
    assert (one == other) == (one.root(salt) == other.root(salt))


def test_block_size_and_parent_change_the_key() -> None:
    assert not set(keys(block=2)) & set(keys(block=4))
    assert keys(tokens=range(4, 8)) != keys()[1:]
