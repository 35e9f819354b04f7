"""What is lost by a type is nothing for float32, and more for fewer bits."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from netgain.serving.model.checkpoint import open_checkpoint  # noqa: E402
from netgain.serving.model.kernels.select import load_kernels  # noqa: E402
from netgain.serving.model.load import weight_source  # noqa: E402
from netgain.serving.runtime.quality import (  # noqa: E402
    Form,
    Refused,
    bundled_text,
    firsts,
    form_of,
    forms,
    measure,
)

WORDS = 60  # of the text: enough to tell the types apart


def measured_forms(path, wanted, kernels, text, tell=lambda what, share: None):
    """By the form, which its two or three types may stand for: a named tuple is a tuple."""
    checkpoint, wanted = open_checkpoint(path), [Form(*form) for form in wanted]
    first = firsts(weight_source(checkpoint), checkpoint.config, wanted)
    rows = {form_of(row): row for row in measure(path, wanted, first, kernels, text, tell)}
    return {form[:2] if form.activations == "auto" else tuple(form): row for form, row in rows.items()}


@pytest.fixture(scope="module")
def measured(default_model_path):
    text = " ".join(bundled_text().split()[:WORDS])
    shares = []
    kernels = load_kernels("auto", 2)
    wanted = [
        ("int8", "bf16"),
        ("fp32", "fp32"),
        ("auto", "bf16"),
        ("int4", "bf16"),
        ("int8", "int8"),
        ("auto", "bf16", "fp32"),
    ]
    found = measured_forms(default_model_path, wanted, kernels, text, lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert set(found) == set(wanted)
    return found


def test_float32_loses_nothing_against_itself(measured):
    same = measured["fp32", "fp32"]
    assert (same.kl_mean, same.kl_p99, same.same_top) == (0.0, 0.0, 1.0)
    assert same.perplexity == same.perplexity_fp32 > 1.0


def test_a_file_of_four_bits_is_kept_under_int4_and_rounded_once_more_under_int8(measured):
    eight, four = measured["int8", "bf16"], measured["int4", "bf16"]
    assert 0.0 < four.kl_mean < 0.05
    assert 0.0 < eight.kl_mean < 0.05
    assert four.weight_bytes < eight.weight_bytes
    assert min(four.same_top, eight.same_top) > 0.8  # of 69 places
    assert eight.perplexity_fp32 == four.perplexity_fp32


def test_dtypes_with_the_same_tensors_are_measured_once(measured):
    kept, alias = measured["auto", "bf16"], measured["int4", "bf16"]
    assert (kept.same_as, alias.same_as) == (None, "auto weights, bf16 KV")
    assert (kept.kl_mean, kept.kl_p99, kept.perplexity) == (alias.kl_mean, alias.kl_p99, alias.perplexity)


def test_by_default_every_dtype_and_int8_kv_are_measured():
    assert set(forms((), ())) == {
        *((dtype, "bf16", "auto") for dtype in ("bf16", "fp16", "int8", "int4", "auto")),
        *((dtype, "bf16", "fp32") for dtype in ("int8", "int4", "auto")),
        ("bf16", "bf16", "bf16"),
        ("auto", "int8", "auto"),
    }
    assert forms(["fp32", "int8", "fp32"], ()) == (("fp32", "fp32", "auto"), ("int8", "bf16", "auto"))
    assert forms((), ["int8", "auto"]) == (("auto", "int8", "auto"), ("auto", "bf16", "auto"))
    assert forms((), (), ["fp32", "auto"]) == (("auto", "bf16", "fp32"), ("auto", "bf16", "auto"))


def test_activations_that_are_not_rounded_lose_less(measured):
    """Blocks of four bits are as the file has them in both, so what is left beside float32 is the KV in bf16."""
    rounded, exact = measured["auto", "bf16"], measured["auto", "bf16", "fp32"]
    assert exact.kl_mean < 0.2 * rounded.kl_mean
    assert (rounded.multiplied_with, exact.multiplied_with) == (("int8",), ("fp32",))
    assert exact.computed == ("Q4_1 x fp32", "Q8_0 x fp32")
    assert rounded.weight_bytes == exact.weight_bytes


@pytest.fixture(scope="module")
def float_model(tmp_path_factory) -> Path:
    """A random model in float32: its numbers lie on no grid, as those of a file in four bits do."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(6)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=255,
    )
    folder = tmp_path_factory.mktemp("float")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("path", ["torch", "compiled"])
def test_fewer_bits_lose_more_and_take_less(request, float_model, path):
    if path == "compiled":
        request.getfixturevalue("requires_compiler")
    kernels, text = load_kernels(path, 2), bundled_text()[:300]
    wanted = [("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16")]
    exact, *found = measured_forms(float_model, wanted, kernels, text).values()
    losses = [one.kl_mean for one in (exact, *found)]
    assert losses[0] == 0.0
    assert losses == sorted(set(losses)), "each type loses more than the one with more bits"
    sizes = [one.weight_bytes for one in (exact, *found)]
    if path == "torch":  # which spends a byte on four bits
        sizes.pop()
    assert sizes == sorted(sizes, reverse=True)


def test_rounded_kv_loses_more_than_bf16(measured):
    assert measured["int8", "bf16"].kl_mean < measured["int8", "int8"].kl_mean < 0.1


def test_a_form_that_a_model_cannot_have_says_why_and_the_others_are_measured(float_model, tmp_path):
    from shutil import copytree

    from safetensors.torch import load_file, save_file

    folder = copytree(float_model, tmp_path / "large")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 40] = 70_000.0
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kernels, text = load_kernels("torch"), bundled_text()[:80]
    found = measured_forms(folder, [("fp16", "bf16"), ("bf16", "bf16"), ("int8", "bf16", "bf16")], kernels, text)
    refused = found["fp16", "bf16"]
    assert isinstance(refused, Refused)
    assert "layers.0.mlp.up_proj.weight (F32) holds 70000" in refused.why
    assert found["bf16", "bf16"].kl_mean >= 0.0
    assert "bf16 activations need bf16 weights" in found["int8", "bf16", "bf16"].why
