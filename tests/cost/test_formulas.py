"""The formulas against worked figures, published figures, and what must hold whatever the numbers."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from netgain.cost import collectives, experts, knowledge, kv, speculation
from netgain.errors import UsageError

CHANCES = st.floats(0.0, 1.0)
POSITIVE = st.floats(1e-3, 1e6)
GIB = 2**30
SHAPE = knowledge.Shape(system=500, chunks=10, chunk=500, question=500, knowledge=100_000)


def test_the_worked_acceptances():
    assert speculation.expected_accepted([0.8] * 4) == pytest.approx(2.3616)
    assert speculation.expected_accepted([0.5] * 4) == pytest.approx(0.9375)
    assert speculation.expected_accepted([]) == 0.0
    assert speculation.committed_per_step([1.0] * 3) == 4.0, "all accepted and the bonus token"


@given(st.lists(CHANCES, max_size=12), CHANCES)
def test_another_draft_never_commits_fewer_tokens_and_at_most_one_more(chances, another):
    before, after = (speculation.committed_per_step(given) for given in (chances, [*chances, another]))
    assert before <= after <= before + 1.0
    assert 1.0 <= before <= len(chances) + 1.0


@given(CHANCES, st.integers(0, 20))
def test_equal_chances_make_a_geometric_series(chance, length):
    assume(chance < 0.999)
    closed = (1 - chance ** (length + 1)) / (1 - chance)
    assert speculation.committed_per_step([chance] * length) == pytest.approx(closed)


@given(st.floats(0.0, 0.99), st.floats(0.001, 2.0))
def test_drafting_pays_for_some_length_exactly_when_acceptance_exceeds_its_cost(acceptance, cost):
    """Leviathan et al. 2023, corollary 3.9: alpha > c, and then at least (1 + alpha) / (1 + c)."""
    assume(abs(acceptance - cost) > 1e-6)
    best = speculation.best_length(acceptance, cost)
    assert (best > 0) == (acceptance > cost)
    if best:
        found = speculation.speedup([acceptance] * best, cost)
        assert found >= (1 + acceptance) / (1 + cost) - 1e-9


def test_the_worked_rejection():
    kept, again, both = speculation.rejection_law([0.8, 0.2], [0.5, 0.5])
    assert kept == pytest.approx([0.5, 0.2])
    assert again == pytest.approx([0.0, 0.3])
    assert both == pytest.approx([0.5, 0.5])


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(*[st.lists(POSITIVE, min_size=n, max_size=n)] * 2)))
def test_rejection_sampling_keeps_the_targets_law(weights):
    draft, target = ([part / math.fsum(law) for part in law] for law in weights)
    assert speculation.rejection_law(draft, target)[2] == pytest.approx(target, abs=1e-9)


@pytest.mark.parametrize(
    ("layers", "heads", "dim", "width", "ranks", "expected"),
    [
        (80, 8, 128, 2, 1, 327_680),  # Llama-3.1-70B
        (32, 8, 128, 2, 1, 131_072),  # Llama-3.1-8B
        (36, 8, 128, 2, 1, 147_456),  # Qwen3-8B
        (40, 40, 128, 2, 1, 819_200),  # OPT-13B
        (64, 72, 128, 2, 1, 2_359_296),  # OPT-66B
        (30, 3, 64, 2, 1, 23_040),  # SmolLM2-135M
        (24, 2, 64, 2, 1, 12_288),  # Qwen2.5-0.5B
        (80, 8, 128, 2, 8, 40_960),
        (80, 8, 128, 2, 16, 40_960),  # replicated: never less than a head
    ],
)
def test_published_bytes_per_token(layers, heads, dim, width, ranks, expected):
    assert kv.token_bytes(layers, heads, dim, width, ranks) == expected


def test_latent_attention_keeps_one_vector_per_layer():
    assert kv.latent_token_bytes(61, 512, 64, 2) == 70_272  # DeepSeek-V3
    assert kv.latent_token_bytes(78, 512, 64, 1) == 44_928


def test_heads_that_cannot_be_shared_out_are_refused():
    with pytest.raises(UsageError, match="3 KV heads cannot be shared out over 2 ranks"):
        kv.token_bytes(30, 3, 64, 2, 2)


def test_the_worked_handoff():
    demand = kv.handoff_bandwidth(1.2 * GIB, 8)
    assert demand == pytest.approx(9.6 * GIB)
    assert demand / (12 * GIB) == pytest.approx(0.8)


def test_the_worked_load_or_recompute():
    best = kv.transfer_s(4 * GIB, 16 * GIB)
    assert best == pytest.approx(0.250)
    assert kv.warm_s(0, 0, best, 0, 0) > 0.180
    assert kv.warm_s(0, 0, best, 0, 0) < 2.0


@given(POSITIVE, POSITIVE, st.floats(0.0, 10.0))
def test_at_the_break_even_bandwidth_loading_takes_as_long_as_computing(size, full, other):
    bandwidth = kv.break_even_bandwidth(size, full, other)
    if math.isinf(bandwidth):
        assert other >= full
    else:
        assert other + kv.transfer_s(size, bandwidth) == pytest.approx(full, rel=1e-6)


@given(POSITIVE, POSITIVE, st.integers(1, 100))
def test_overlap_hides_but_never_all(transfer, prefill, chunks):
    exposed = kv.exposed_s(transfer, prefill, chunks)
    assert transfer / chunks <= exposed <= transfer
    assert kv.exposed_s(transfer, prefill, 1) == transfer
    assert kv.exposed_s(transfer, 0.0, chunks) == transfer


@given(POSITIVE, st.floats(0.1, 100.0), POSITIVE)
def test_free_compression_pays_exactly_when_it_shrinks(size, ratio, bandwidth):
    raw, packed = kv.transfer_s(size, bandwidth), kv.compressed_s(size, ratio, bandwidth, 0.0, 0.0)
    assert (packed <= raw) == (ratio >= 1.0) or packed == pytest.approx(raw)


def test_many_short_hits_save_less_than_few_long_ones():
    assert kv.saved_tokens([(90, 16)]) == 1_440
    assert kv.saved_tokens([(10, 50_000)]) == 500_000


def test_the_worked_rag_and_cag():
    assert SHAPE.rag_prefill == 5_500
    assert knowledge.prefill_ratio(SHAPE) == pytest.approx(1 / 11)
    assert knowledge.rag_price(SHAPE, 0.1e6, 1e6, 0.0) == pytest.approx(5_550)
    assert knowledge.cag_price(SHAPE, 0.1e6, 1e6, 0.0) == pytest.approx(10_550)


@given(st.floats(0.0, 0.2))
def test_the_break_even_discount_divides_who_is_cheaper(discount):
    edge = knowledge.break_even_discount(SHAPE)
    assert edge == pytest.approx(0.05)
    assume(abs(discount - edge) > 1e-6)
    cheaper = knowledge.cag_price(SHAPE, discount, 1.0, 0.0) < knowledge.rag_price(SHAPE, discount, 1.0, 0.0)
    assert cheaper == (discount < edge)


@given(st.floats(0.0, 100.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(100.0, 1e5))
def test_from_the_break_even_reuse_on_cag_takes_less(build, load, retrieval, prefill):
    edge = knowledge.break_even_reuse(SHAPE, build, load, retrieval, prefill)
    rag = knowledge.rag_s(SHAPE, retrieval, prefill)
    if math.isinf(edge):
        assert knowledge.cag_s(SHAPE, build, 1e12, load, prefill) >= rag - 1e-6
    elif edge > 1e-6:
        assert knowledge.cag_s(SHAPE, build, edge, load, prefill) == pytest.approx(rag, rel=1e-6)
        assert knowledge.cag_s(SHAPE, build, 2 * edge, load, prefill) <= rag + 1e-9


def test_the_worked_dispatch():
    """4 experts on 2 devices: A and C send one piece each, B none."""
    placement = [[0, 1], [2, 3]]
    a, b, c = experts.Routed(0, (0, 2)), experts.Routed(0, (1, 0)), experts.Routed(1, (3, 1))
    assert experts.pieces_sent([a], placement) == [[0, 1], [0, 0]]
    assert experts.pieces_sent([b], placement) == [[0, 0], [0, 0]]
    assert experts.pieces_sent([c], placement) == [[0, 0], [1, 0]]
    assert experts.pieces_sent([a, b, c], placement) == [[0, 1], [1, 0]]
    with pytest.raises(UsageError, match="expert 7 is on no device"):
        experts.pieces_sent([experts.Routed(0, (7,))], placement)


def test_even_placement_is_no_even_load():
    loads = experts.hot_expert_loads(8, 4, 0.7)
    assert loads[0] == pytest.approx(0.7 + 0.3 / 7)
    assert math.fsum(loads) == pytest.approx(1.0)
    assert experts.imbalance(loads) == pytest.approx(4 * (0.7 + 0.3 / 7))
    assert experts.imbalance(experts.hot_expert_loads(8, 4, 1 / 8)) == pytest.approx(1.0)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 16))
def test_a_token_reaches_between_one_rank_and_all_it_could(per_rank, ranks, top_k):
    assume(top_k <= per_rank * ranks)
    found = experts.expected_ranks(per_rank * ranks, ranks, top_k)
    assert 1.0 - 1e-9 <= found <= min(ranks, top_k) + 1e-9
    if top_k == 1:
        assert found == pytest.approx(1.0)
    if top_k == per_rank * ranks:
        assert found == pytest.approx(ranks)


@given(st.integers(1, 256), st.integers(0, 4096))
def test_a_batch_touches_at_most_every_expert(top_k, tokens):
    found = experts.touched_experts(256, top_k, tokens)
    assert 0.0 <= found <= min(256, top_k * tokens) + 1e-9
    assert experts.touched_experts(256, top_k, 1) == pytest.approx(top_k)


def test_dispatch_and_combine_follow_tokens_and_ranks():
    assert experts.dispatch_bytes(128, 8, 7168, 1, 56 * 4 + 16) == 128 * 8 * (7168 + 56 * 4 + 16)  # DeepEP
    assert experts.combine_bytes(128, 8, 7168) == 128 * 8 * 7168 * 2


def test_an_all_reduce_is_its_two_halves():
    halves = [collectives.collective_s(kind, 8, 1e6, 1e-6, 1e9) for kind in ("reduce-scatter", "all-gather")]
    assert collectives.collective_s("all-reduce", 8, 1e6, 1e-6, 1e9) == pytest.approx(sum(halves))
    assert collectives.traffic_factor("all-reduce", 8) == 1.75
    assert collectives.collective_s("all-to-all", 1, 1e6, 1e-6, 1e9) == 0.0
    assert collectives.collective_s("point-to-point", 2, 1e6, 1e-6, 1e9) == pytest.approx(1e-6 + 1e-3)


@given(st.integers(1, 64), st.integers(1, 1024))
def test_more_micro_batches_shrink_the_bubble(stages, micro):
    found = collectives.pipeline_bubble(stages, micro)
    assert 0.0 <= found < 1.0
    assert collectives.pipeline_bubble(stages, micro + 1) <= found
    assert (found == 0.0) == (stages == 1)


def test_tensor_parallelism_reduces_twice_per_layer():
    assert collectives.tensor_parallel_bytes(30, 16, 576, 2) == 2 * 30 * 16 * 576 * 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: speculation.expected_accepted([1.2]),
        lambda: speculation.speedup([0.5], -1.0),
        lambda: speculation.rejection_law([0.5, 0.6], [0.5, 0.5]),
        lambda: speculation.rejection_law([1.0], [0.5, 0.5]),
        lambda: kv.exposed_s(1.0, 1.0, 0),
        lambda: kv.compressed_s(1.0, 0.0, 1.0, 0.0, 0.0),
        lambda: knowledge.cag_s(SHAPE, 1.0, 0.0, 0.0, 100.0),
        lambda: knowledge.rag_s(SHAPE, 0.0, 0.0),
        lambda: experts.expected_ranks(8, 3, 2),
        lambda: experts.touched_experts(8, 9, 1),
        lambda: experts.imbalance([0.0, 0.0]),
        lambda: collectives.collective_s("all-reduce", 8, 1.0, 0.0, 0.0),
        lambda: collectives.pipeline_bubble(0, 1),
    ],
)
def test_numbers_that_cannot_be_are_refused(wrong):
    with pytest.raises(UsageError):
        wrong()
