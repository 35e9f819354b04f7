"""How byte-level vocabularies cut text before merging: llama.cpp's names (tokenizer.ggml.pre) in tokenizer.json's terms.

The expressions are those of the families' own tokenizer.json, and llama.cpp's where a family has none.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class PreTokenizer(NamedTuple):
    """`whole_words`: a piece that is a token needs no merging. `start`: a start token by default. `nfc`: text is composed."""

    spec: dict[str, Any]
    whole_words: bool = False
    start: bool = False
    nfc: bool = False


def _split(*expressions: str) -> dict[str, Any]:
    """Cut out every match of the first expression, what is left by the second, and so on; then map bytes to letters."""
    cuts = [
        {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
        for expression in expressions
    ]
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*cuts, letters]}


_GPT2 = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS}|{_REST}")
_QWEN2 = _split(rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS}|{_REST}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = _split(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_DEFAULT = _split(
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)

DEFAULT = "default"  # what a file means that names none
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        DEFAULT: PreTokenizer(_DEFAULT),
        "gpt-2": PreTokenizer(_GPT2),
        "smollm": PreTokenizer({"type": "Sequence", "pretokenizers": [_DIGITS, _GPT2]}),
        "llama-bpe": PreTokenizer(_LLAMA3, whole_words=True, start=True),
        "llama3": PreTokenizer(_LLAMA3, whole_words=True, start=True),
        "llama-v3": PreTokenizer(_LLAMA3, whole_words=True, start=True),
        "qwen2": PreTokenizer(_QWEN2, nfc=True),
        "deepseek-r1-qwen": PreTokenizer(_QWEN2),
        "tekken": PreTokenizer(_TEKKEN, whole_words=True, start=True),
    }
)
