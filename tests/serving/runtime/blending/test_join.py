"""Chunks joined into a prompt: all computed anew is the prefill, bit for bit; less is nearer to it the more is computed."""

import itertools

import pytest
import torch

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.kv import DTYPES
from netgain.serving.model.load import load_model
from netgain.serving.model.selective import SelectiveForward
from netgain.serving.runtime.blending.chunks import chunk_dtype, compute_alone, from_payload
from netgain.serving.runtime.blending.join import Placed, join
from netgain.serving.tiers.blending.selection import Deviating, First, Naive

BLOCK = 4
LEAD = (256,)
FIRST, SECOND = tuple(range(40, 63)), tuple(range(90, 71, -1))
PREFIX, BETWEEN, QUESTION = (256, 3, 4, 5, 6), (10, 11), (7, 8, 9, 200, 201)
PROMPT = (*PREFIX, *FIRST, *BETWEEN, *SECOND, *QUESTION)
TABLE = torch.randperm(20, generator=torch.Generator().manual_seed(0)).to(torch.int32)

FAMILIES = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"family": "mistral", "sliding_window": 13},
    "qwen2": {"family": "qwen2"},
    "qwen3": {
        "family": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 13,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    },
}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "long_factor": [1.0 + i / 4 for i in range(8)],
        "short_factor": [1.0] * 8,
        "original_max_position_embeddings": 64,
    },
}


class Setting:
    """One model on one kernel path; chunks computed behind LEAD."""

    def __init__(self, folder, kernels="auto", kv="fp32"):
        self.kernels, self.kv_dtype = load_kernels(kernels, 1), DTYPES[kv]
        self.decoder = load_model(folder, "fp32", self.kernels).model
        self.forward = SelectiveForward(self.decoder)

    def pool(self):
        return PagedKV(self.decoder.config, len(TABLE), BLOCK, self.kv_dtype)

    def prefill(self, prompt=PROMPT, cuts=(7,), wanted=1):
        """As the engine does it: in pieces, each a forward pass."""
        kv = self.pool()
        bounds = [0, *cuts, len(prompt)]
        for start, end in itertools.pairwise(bounds):
            positions = torch.arange(start, end)
            plan = self.kernels.plan(positions, torch.zeros_like(positions), TABLE[None], BLOCK)
            picked = torch.arange(max(0, end - start - wanted), end - start)
            logits = self.decoder.forward(torch.tensor(prompt)[start:end], positions, plan, kv, picked)
        return logits, kv

    def chunk(self, tokens):
        return compute_alone(self.decoder, self.forward, LEAD, tokens, self.kv_dtype, BLOCK)

    def join(self, selection, prompt=PROMPT, placed=None, kv=None, **options):
        kv = self.pool() if kv is None else kv
        if placed is None:
            second = len(PREFIX) + len(FIRST) + len(BETWEEN)
            placed = [Placed(self.chunk(FIRST), len(PREFIX)), Placed(self.chunk(SECOND), second)]
        return join(self.decoder, self.forward, kv, TABLE, prompt, placed, selection, **options), kv


def places(kv, layer, count):
    """Keys and values of the positions 0..count of a layer, whatever the KV type."""
    keys = kv.keys(layer)[TABLE.long()].permute(0, 3, 1, 2).flatten(0, 1)[:count]
    values = kv.values(layer)[TABLE.long()].permute(0, 2, 1, 3).flatten(0, 1)[:count]
    return keys, values


def same(one, other, layers, count):
    return all(
        torch.equal(a, b)
        for layer in layers
        for a, b in zip(places(one, layer, count), places(other, layer, count), strict=True)
    )


@pytest.mark.parametrize("facts", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("kernels", ["torch", "auto"])
@pytest.mark.parametrize("kv", ["fp32", "bf16", "int8"])
def test_all_recomputed_is_the_prefill_bit_for_bit(tiny, facts, kernels, kv):
    setting = Setting(tiny(num_hidden_layers=4, **facts).folder, kernels, kv)
    logits, full = setting.prefill(wanted=3)
    joined, blended = setting.join(Deviating(1.0), wanted=3)
    assert torch.equal(joined.logits, logits)
    assert same(full, blended, range(4), len(PROMPT))
    assert joined.recomputed == joined.chunk_tokens == len(FIRST) + len(SECOND)


@pytest.mark.parametrize(
    "facts",
    [*FAMILIES.values(), *({"rope_parameters": rope | {"rope_theta": 1e4}} for rope in ROPES.values())],
    ids=[*FAMILIES, *ROPES],
)
@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_a_chunk_behind_its_own_lead_loses_nothing(tiny, facts, kernels):
    """It saw all that it sees in the prompt, and its keys are turned to where they were: the same bits, none computed anew."""
    setting = Setting(tiny(num_hidden_layers=4, **facts).folder, kernels)
    prompt = (*LEAD, *FIRST, *QUESTION)
    logits, full = setting.prefill(prompt)
    joined, blended = setting.join(Naive(), prompt, [Placed(setting.chunk(FIRST), 1)])
    assert torch.equal(joined.logits, logits)
    assert same(full, blended, range(4), len(prompt))
    assert joined.recomputed == 0


@pytest.mark.parametrize("rope", [None, *ROPES.values()], ids=["default", *ROPES])
def test_keys_are_turned_to_any_position_as_if_computed_there(tiny, rope):
    """In the first layer keys and values depend on no other token. Case of LMCache/LMCache#4666: scaled RoPE."""
    facts = {} if rope is None else {"rope_parameters": rope | {"rope_theta": 1e4}}
    setting = Setting(tiny(**facts).folder)
    _, full = setting.prefill()
    _, blended = setting.join(Naive())
    assert same(full, blended, [0], len(PROMPT))
    assert not same(full, blended, [1], len(PROMPT))


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_the_more_is_recomputed_the_nearer_the_prefill(tiny, kernels):
    """Nearer on the mean of several models: of one, more may be farther."""
    ladder = [Naive(), Deviating(0.15), Deviating(0.4), Deviating(0.8), Deviating(1.0)]
    distances = torch.zeros(len(ladder))
    for seed in range(4):
        setting = Setting(tiny(seed, num_hidden_layers=6).folder, kernels, "bf16")
        logits, _ = setting.prefill()
        for index, selection in enumerate(ladder):
            joined, _ = setting.join(selection)
            distances[index] += (joined.logits.log_softmax(1) - logits.log_softmax(1)).abs().mean()
    assert distances.tolist() == sorted(distances.tolist(), reverse=True)
    assert distances[-1] == 0


def test_what_is_recomputed_in_the_first_layers_is_as_in_the_prefill(tiny):
    """The first layer computes all, so keys and values of the second are those of the prefill for every token."""
    setting = Setting(tiny(num_hidden_layers=4).folder)
    _, full = setting.prefill()
    joined, blended = setting.join(Deviating(0.3))
    assert same(full, blended, [0, 1], len(PROMPT))
    assert not same(full, blended, [2], len(PROMPT))
    counts = Deviating(0.3).counts(joined.chunk_tokens, 4)
    assert joined.recomputed == sum(counts) / 4


def test_the_most_deviating_tokens_are_recomputed(tiny):
    setting = Setting(tiny(num_hidden_layers=2).folder)
    chunk = setting.chunk(FIRST)
    spoilt = chunk._replace(values=chunk.values.clone())
    spoilt.values[1, [3, 17]] += 50.0
    prompt = (*LEAD, *FIRST, *QUESTION)
    logits, _ = setting.prefill(prompt)
    ratio = 2 / len(FIRST)
    joined, _ = setting.join(Deviating(ratio), prompt, [Placed(spoilt, 1)])
    assert torch.equal(joined.logits, logits)
    naive, _ = setting.join(Naive(), prompt, [Placed(spoilt, 1)])
    assert not torch.equal(naive.logits, logits)


def test_the_first_tokens_of_each_chunk_are_recomputed_in_every_layer(tiny):
    setting = Setting(tiny(num_hidden_layers=3).folder)
    joined, blended = setting.join(First(4))
    _, naive = setting.join(Naive())
    assert joined.recomputed == 8
    starts = (len(PREFIX), len(PREFIX) + len(FIRST) + len(BETWEEN))
    new = [*range(starts[0], starts[0] + 4), *range(starts[1], starts[1] + 4)]
    old = [*range(starts[0] + 4, starts[0] + len(FIRST)), *range(starts[1] + 4, starts[1] + len(SECOND))]
    for layer in (1, 2):
        for one, other in zip(places(blended, layer, len(PROMPT)), places(naive, layer, len(PROMPT)), strict=True):
            assert torch.equal(one[old], other[old])
            assert not any(torch.equal(one[place], other[place]) for place in new)


@pytest.mark.parametrize("selection", [Naive(), First(3), Deviating(0.4), Deviating(1.0)], ids=str)
def test_a_prefix_that_is_there_is_not_computed_again(tiny, selection):
    """The prompt's beginning may come from the prefix cache; the outcome has the same bits."""
    setting = Setting(tiny(num_hidden_layers=4).folder)
    whole, _ = setting.join(selection)
    _, kv = setting.prefill(PREFIX, cuts=())
    part, _ = setting.join(selection, kv=kv, start=len(PREFIX))
    assert torch.equal(part.logits, whole.logits)
    assert part.computed == whole.computed - len(PREFIX)


@pytest.mark.parametrize("selection", [Naive(), First(3), Deviating(0.4)], ids=str)
def test_a_prompt_of_chunks_alone_is_answered(tiny, selection):
    """The last token is computed even where a chunk holds it. Case of LMCache/LMCache#938: every token hits."""
    setting = Setting(tiny(num_hidden_layers=4).folder)
    prompt = (*FIRST, *SECOND)
    joined, _ = setting.join(
        selection, prompt, [Placed(setting.chunk(FIRST), 0), Placed(setting.chunk(SECOND), len(FIRST))]
    )
    assert joined.logits.isfinite().all()
    assert joined.computed == 1


def test_a_chunk_may_stand_in_a_prompt_twice(tiny):
    setting = Setting(tiny(num_hidden_layers=4).folder)
    prompt = (*PREFIX, *FIRST, *FIRST, *QUESTION)
    chunk = setting.chunk(FIRST)
    placed = [Placed(chunk, len(PREFIX)), Placed(chunk, len(PREFIX) + len(FIRST))]
    logits, _ = setting.prefill(prompt)
    joined, _ = setting.join(Deviating(1.0), prompt, placed)
    assert torch.equal(joined.logits, logits)
    assert setting.join(Deviating(0.3), prompt, placed)[0].logits.isfinite().all()


def test_chunks_that_overlap_or_are_not_in_the_prompt_are_refused(tiny):
    setting = Setting(tiny().folder)
    chunk = setting.chunk(FIRST)
    with pytest.raises(ValueError, match="begins before"):
        setting.join(Naive(), PROMPT, [Placed(chunk, len(PREFIX)), Placed(chunk, len(PREFIX) + 1)])
    with pytest.raises(ValueError, match="other tokens"):
        setting.join(Naive(), PROMPT, [Placed(chunk, 0)])


@pytest.mark.parametrize("kv", ["fp32", "bf16", "int8"])
def test_a_chunk_read_from_its_bytes_is_the_same(tiny, kv):
    setting = Setting(tiny().folder, kv=kv)
    chunk = setting.chunk(FIRST)
    payload = memoryview(chunk.payload())
    read = from_payload(FIRST, 2, chunk_dtype(setting.kv_dtype), payload, torch.device("cpu"))
    assert torch.equal(read.keys, chunk.keys)
    assert torch.equal(read.values, chunk.values)
