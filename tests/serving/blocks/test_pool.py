import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.blocks.keys import KeyChain, Namespace
from netgain.serving.blocks.layout import KVLayout
from netgain.serving.blocks.pool import BlockPool

NAMESPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bf16", numerics="n")


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def test_released_published_block_is_found_until_evicted():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.publish(block, key(1))
    pool.release([block])
    assert pool.lookup([key(1)]) == [block]
    pool.allocate(2)
    assert pool.lookup([key(1)]) == []
    assert pool.evictions == 1
    pool.check()


def test_tail_of_a_prefix_is_evicted_before_its_head():
    pool = BlockPool(2)
    blocks = pool.allocate(2)
    for number, block in enumerate(blocks):
        pool.publish(block, key(number))
    pool.release(blocks)
    pool.allocate(1)
    assert pool.lookup([key(0), key(1)]) == blocks[:1]


def test_a_held_block_is_never_evicted():
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    pool.publish(block, key(1))
    pool.acquire(pool.lookup([key(1)]))
    pool.release([block])
    with pytest.raises(ValueError, match="0 available"):
        pool.allocate(1)
    pool.check()


def test_second_copy_of_a_key_stays_private():
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    pool.publish(first, key(1))
    pool.publish(second, key(1))
    pool.release([first, second])
    assert pool.lookup([key(1)]) == [first]
    pool.check()


@given(st.lists(st.tuples(st.sampled_from(["allocate", "release", "publish", "lookup", "clear"]), st.integers(0, 5))))
def test_every_block_is_in_exactly_one_state(operations):
    pool = BlockPool(6)
    held: list[int] = []
    for operation, number in operations:
        if operation == "allocate" and number <= pool.available:
            held += pool.allocate(number)
        elif operation == "release" and held:
            pool.release([held.pop(number % len(held))])
        elif operation == "publish" and held:
            pool.publish(held[number % len(held)], key(number))
        elif operation == "lookup":
            found = pool.lookup([key(number)])
            pool.acquire(found)
            held += found
        elif operation == "clear":
            pool.clear_cache()
        pool.check()
    pool.release(held)
    pool.check()
    assert pool.available == 6


def test_keys_depend_on_everything_before_them():
    def keys(tokens, namespace=NAMESPACE, salt=b""):
        chain = KeyChain(namespace.root(salt), 4)
        chain.extend(tokens)
        return chain.keys

    first = keys(range(8))
    assert len(first) == 2
    assert keys([9, *range(1, 8)])[1] != first[1]
    assert keys(range(8), salt=b"tenant") != first
    for field in ("weights", "tokenizer", "rope", "kv_dtype", "numerics", "adapter"):
        values = {name: getattr(NAMESPACE, name) for name in NAMESPACE.__struct_fields__}
        assert keys(range(8), Namespace(**{**values, field: "other"})) != first, field


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40), st.lists(st.integers(1, 7), max_size=20))
def test_keys_do_not_depend_on_how_tokens_arrive(tokens, sizes):
    whole = KeyChain(NAMESPACE.root(), 4)
    whole.extend(tokens)
    pieces = KeyChain(NAMESPACE.root(), 4)
    rest = list(tokens)
    for size in sizes:
        pieces.extend(rest[:size])
        del rest[:size]
    pieces.extend(rest)
    assert pieces.keys == whole.keys
    assert len(whole.keys) == len(tokens) // 4


def test_bytes_per_token_of_a_grouped_head_model():
    layout = KVLayout(layers=28, kv_heads=8, head_dim=128, value_bytes=2, block_tokens=16)
    assert layout.token_bytes == 114_688
    assert layout.block_bytes == 16 * 114_688
    assert layout.blocks_for(17) == 2


def test_blocks_to_read_from_are_cached_ones_then_those_used_last_and_stay_where_they_are():
    pool = BlockPool(6)
    first, second, third = pool.allocate(3)
    pool.publish(second, b"key")
    pool.release([second, third])
    assert pool.free == 4
    assert pool.most_likely_written(2) == [second, third]
    assert first not in pool.most_likely_written(9), "it is held"
    assert len(pool.most_likely_written(9)) == 5
    assert pool.lookup([b"key"]) == [second]
    pool.check()
