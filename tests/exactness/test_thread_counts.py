"""No bit of a logit depends on how many threads computed it, nor on what shares its batch, in every compute type, with all
activations, and on both kernel paths."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netgain.serving.model.weights import DTYPES

SIZES = (1, 2, 3, 61)  # rows of the batches that the same tokens are computed in


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices of many panels, so that every thread has its share; one of them has rows that no group divides."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=700,
        hidden_size=160,
        intermediate_size=328,
        num_hidden_layers=2,
        num_attention_heads=10,
        num_key_value_heads=5,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=699,
    )
    path = tmp_path_factory.mktemp("wide")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("dtype", "activations"),
    [*((dtype, "auto") for dtype in DTYPES), ("bf16", "bf16"), ("int8", "fp32"), ("int4", "fp32")],
)
@pytest.mark.parametrize("path", ["torch", "compiled"])
def test_logits_have_the_same_bits_on_any_number_of_threads(request, folder, torch_threads, path, dtype, activations):
    import torch

    from netgain.serving.model.cache import PagedKV
    from netgain.serving.model.kernels.select import load_kernels
    from netgain.serving.model.load import load_model

    if path == "compiled":
        request.getfixturevalue("requires_compiler")
    tokens = torch.randint(0, 700, (sum(SIZES),), generator=torch.Generator().manual_seed(9))
    positions = torch.arange(len(tokens))
    expected = None
    for threads in (1, 2, 3):
        torch_threads(threads if path == "torch" else 1)
        kernels = load_kernels(path, threads)
        loaded = load_model(folder, dtype, kernels, activations=activations)
        for sizes in ((len(tokens),), SIZES):
            kv = PagedKV(loaded.config, 8, 16, torch.bfloat16)
            rows = []
            for here, there in zip(positions.split(sizes), tokens.split(sizes), strict=True):
                plan = kernels.plan(here, torch.zeros_like(here), torch.arange(8, dtype=torch.int32)[None], 16)
                rows.append(loaded.model.forward(there, here, plan, kv, torch.arange(len(here))))
            logits = torch.cat(rows)
            expected = logits if expected is None else expected
            assert torch.equal(logits, expected), f"{threads} threads, {len(sizes)} batches"
    assert bool(expected.isfinite().all())
