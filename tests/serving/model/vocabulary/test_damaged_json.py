"""A damaged tokenizer.json is refused with one clear error, whatever the library below makes of it."""

import contextlib
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import RequestRejected, UsageError
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.folder import tokenizer_from_file, tokenizer_from_folder

LETTERS = ["<unk>", "<s>", "▁", "a", "b", "▁a", "ab", *(f"<0x{byte:02X}>" for byte in range(256))]
SPEC: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": number, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, token in enumerate(["<unk>", "<s>"])
    ],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{N}"}, "behavior": "Isolated", "invert": False},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    },
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(LETTERS)},
        "merges": [["▁", "a"], ["a", "b"]],
    },
}  # fmt: skip


def test_the_whole_one_works() -> None:
    tokenizer = Tokenizer(SPEC, "test")
    assert tokenizer.decode(tokenizer.encode("ab 가", start=True)) == "ab 가"


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be damaged; of the vocabulary only its beginning."""
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    return [path, *(place for key, item in items[:12] for place in places(item, (*path, key)))]


PLACES = [place for place in places(SPEC) if place]
JUNK = st.sampled_from(
    [None, True, -1, 0, 1, 3, 2**32 - 1, 2**32, 2**70, 0.5, "", "x", "<s>", "(", "[", [], [[]], ["a"], {}, {"a": 1}]
)


def try_out(spec: Any) -> None:
    """It is refused, or it is a tokenizer that neither fails nor invents ids."""
    try:
        tokenizer = Tokenizer(spec, "damaged")
        tokenizer.ready()
    except UsageError as error:
        reason = str(error)
    else:
        use(tokenizer)
        return
    assert reason.startswith("damaged: ")


def use(tokenizer: Tokenizer) -> None:
    for text in ("", "ab 12", "가<s>"):
        try:
            ids = tokenizer.encode(text, start=True)
        except RequestRejected:
            continue
        assert all(0 <= token < tokenizer.vocab_size for token in ids)
        tokenizer.decode(ids)


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("junk", [None, -1, 2**32, "x", [], {}], ids=repr)
def test_one_wrong_value_is_no_crash(place: tuple[Any, ...], junk: object) -> None:
    try_out(damaged(SPEC, place, junk))


@given(changes=st.lists(st.tuples(st.sampled_from(PLACES), JUNK), min_size=1, max_size=4))
def test_several_wrong_values_are_no_crash(changes: list[tuple[tuple[Any, ...], object]]) -> None:
    spec: Any = SPEC
    for place, junk in changes:
        spec = damaged(spec, place, junk)
    try_out(spec)


def refusal(action: Callable[[], object]) -> str | None:
    """Why it was refused; None when it was not."""
    try:
        action()
    except RequestRejected:
        raise
    except UsageError as error:
        return str(error)
    return None


def damaged(spec: Any, place: tuple[Any, ...], junk: object) -> Any:
    spec = inner = copy.deepcopy(spec)
    for key in place[:-1]:
        try:
            inner = inner[key]
        except (TypeError, LookupError):
            return spec
    key = place[-1]
    if isinstance(inner, dict) or (isinstance(inner, list) and isinstance(key, int) and key < len(inner)):
        inner[key] = junk
    return spec


@given(data=st.data())
def test_a_cut_or_changed_file_is_no_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = bytearray(json.dumps(SPEC, ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
    path = tmp_path_factory.mktemp("cut") / "tokenizer.json"
    path.write_bytes(raw[:end])
    with contextlib.suppress(RequestRejected):
        assert "tokenizer.json" in (refusal(lambda: tokenizer_from_file(path).encode("ab")) or "tokenizer.json")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {**SPEC["model"], "merges": [["a", "nosuch"]]}}, "nosuch"),
        ({"added_tokens": [{**SPEC["added_tokens"][0], "id": 7}]}, "<unk>"),
        ({"added_tokens": [{**SPEC["added_tokens"][0], "content": "<new>", "id": 9999}]}, "<new>"),
        ({"added_tokens": [{"id": 0}]}, "content"),
        ({"model": None}, "Model"),
        ({"decoder": None}, "decoder"),
        ({"decoder": {"type": "BPEDecoder", "suffix": "</w>"}}, "BPEDecoder"),
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 0, "stop": 1}]}},
            "Strip",
        ),
    ],
)
def test_the_reason_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        Tokenizer({**SPEC, **change}, "test")


def test_ids_beyond_the_tokens_count_into_the_size() -> None:
    """A model of fewer rows than the highest id must be seen to be too small."""
    vocab = {**SPEC["model"]["vocab"], "far": 10**6}
    assert Tokenizer({**SPEC, "model": {**SPEC["model"], "vocab": vocab}}, "test").vocab_size == 10**6 + 1


@pytest.mark.parametrize("settings", ["[]", "{", '{"added_tokens_decoder": []}', '{"added_tokens_decoder": {"x": 1}}'])
def test_settings_beside_it_may_be_damaged_too(tmp_path: Path, settings: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(SPEC))
    (tmp_path / "tokenizer_config.json").write_text(settings)
    size: list[int] = []
    said = refusal(lambda: size.append(tokenizer_from_folder(tmp_path).vocab_size))
    assert size == [len(LETTERS)] if said is None else "tokenizer_config.json" in said
