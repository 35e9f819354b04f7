"""Byte-level vocabularies of GGUF files encode as the families' own tokenizers do."""

import json
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder
from tokenizers import models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer

from netgain.errors import UsageError
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.gguf import tokenizer_from_gguf
from netgain.serving.model.vocabulary.pre_tokenizers import PRE_TOKENIZERS
from tests.serving.model.texts import TEXT, TEXTS


def train() -> dict[str, Any]:
    """A vocabulary whose merges know no borders of words, so that every difference in cutting shows."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1800, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator([TEXT, *TEXTS, *(text[at:] for text in TEXTS for at in (1, 2))], trainer)
    model: dict[str, Any] = json.loads(encoder.to_str())["model"]
    return model


MODEL = train()
TOKENS = [*MODEL["vocab"], "<|im_start|>", "<|im_end|>", "<tool_call>"]
KINDS = [1] * len(MODEL["vocab"]) + [3, 3, 4]
START = len(MODEL["vocab"])


def metadata(pre: object, **more: Any) -> dict[str, Any]:
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": TOKENS,
        "token_type": KINDS,
        "merges": [" ".join(pair) for pair in MODEL["merges"]],
        "bos_token_id": START,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**values, **more}.items() if value is not None}


def ours(pre: str, **more: Any) -> Tokenizer:
    return tokenizer_from_gguf(Path("model.gguf"), metadata(pre, **more))


def theirs(pre: str) -> Encoder:
    """As transformers builds it."""
    if pre == "qwen2":
        built = Qwen2Tokenizer(vocab=dict(MODEL["vocab"]), merges=[tuple(pair) for pair in MODEL["merges"]])
        return built.backend_tokenizer
    if pre == "gpt-2":
        return GPT2Tokenizer(vocab=dict(MODEL["vocab"]), merges=[tuple(p) for p in MODEL["merges"]]).backend_tokenizer
    names = {"tokenizer_type": "gpt2", "pre_tokenizer_type": pre}
    merges = [" ".join(pair) for pair in MODEL["merges"]]
    encoder, _ = convert_gguf_tokenizer("llama", {**names, "tokens": TOKENS, "token_type": KINDS, "merges": merges})
    encoder.model.ignore_merges = PRE_TOKENIZERS[pre].whole_words
    return encoder


@pytest.mark.parametrize("pre", [name for name in PRE_TOKENIZERS if name not in ("default", "smollm")])
def test_text_is_encoded_as_transformers_does(pre: str) -> None:
    mine, reference = ours(pre), theirs(pre)
    for text in [*TEXTS, TEXT]:
        text = text.replace("<|im_start|>", "")  # which theirs takes for the control token
        assert mine.encode(text) == reference.encode(text, add_special_tokens=False).ids, text
        if pre != "qwen2":  # which composes characters
            assert mine.decode(mine.encode(text)) == text


# Expressions as llama.cpp lists them; each cuts what the one before has left.
CUTS = {
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ),
    "smollm": (r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
    "gpt-2": (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",),
}


def cut(text: str, expressions: tuple[str, ...]) -> list[str]:
    pieces = [text] if text else []
    for expression in expressions:
        pieces = [part for piece in pieces for part in regex.split(f"({expression})", piece) if part]
    return pieces


@pytest.mark.parametrize("pre", CUTS)
@pytest.mark.parametrize("text", [*TEXTS, TEXT])
def test_text_is_cut_as_llama_cpp_does(pre: str, text: str) -> None:
    encoder = Encoder.from_str(json.dumps(dict(ours(pre).spec)))
    pieces = [text[start:end] for _, (start, end) in encoder.pre_tokenizer.pre_tokenize_str(text)]
    assert pieces == cut(text, CUTS[pre])


TOKENIZERS = {name: ours(name) for name in PRE_TOKENIZERS if not PRE_TOKENIZERS[name].nfc}


@given(text=st.text(), name=st.sampled_from(sorted(TOKENIZERS)))
def test_any_text_comes_back(text: str, name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_start_tokens_are_the_familys_unless_the_file_says_otherwise() -> None:
    assert ours("llama-bpe").encode("a", start=True)[0] == START
    assert ours("llama-bpe", add_bos_token=False).encode("a", start=True) == ours("llama-bpe").encode("a")
    assert ours("qwen2").encode("a", start=True) == ours("qwen2").encode("a")
    assert ours("qwen2", add_bos_token=True).encode("a", start=True)[0] == START
    assert ours("tekken", bos_token_id=None).encode("a", start=True) == ours("tekken").encode("a")


def test_user_defined_markup_is_a_marker_that_decodes() -> None:
    tokenizer = ours("qwen2")
    assert tokenizer.markers["<tool_call>"] == START + 2
    assert tokenizer.decode([START, START + 2]) == "<tool_call>"


def test_a_file_that_names_no_pre_tokenizer_means_the_default_one() -> None:
    assert tokenizer_from_gguf(Path("m.gguf"), metadata(None)).digest == ours("default").digest


@pytest.mark.parametrize("pre", ["viking", "", 5, ["gpt-2"]])
def test_other_pre_tokenizers_are_refused_by_name(pre: object) -> None:
    with pytest.raises(UsageError, match="pre-tokenizer") as caught:
        tokenizer_from_gguf(Path("model.gguf"), metadata(pre))
    assert repr(pre) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokens", None),
        ("tokens", []),
        ("tokens", ["a", 1]),
        ("tokens", "abc"),
        ("tokens", ["a", "a"]),
        ("merges", ["a b c"]),
        ("merges", ["nosuch token"]),
        ("merges", None),
        ("token_type", [1]),
        ("bos_token_id", 10**9),
        ("bos_token_id", -1),
    ],
)
def test_a_damaged_vocabulary_is_refused(key: str, value: object) -> None:
    with pytest.raises(UsageError, match=r"model\.gguf"):
        tokenizer_from_gguf(Path("model.gguf"), metadata("llama-bpe", **{key: value}))
