"""Text to ids and back: as transformers does it, except that no text can spell a control token and no character is cut."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder
from transformers import AutoTokenizer

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer, guard_for
from netgain.serving.model.vocabulary.folder import tokenizer_from_file
from netgain.serving.model.vocabulary.gguf import tokenizer_from_gguf

GUARD = "\ufdd0"
TEXT = """def f(x):\n\treturn {"a": [1, 22, 333, 4444.5], 'b': x**2}  # 2026-11-29\r\n
서울은 대한민국의 수도이다. 東京は日本の首都です。 Příliš žluťoučký kůň. مرحبا بالعالم 12٣ ½ é́ 🫠👩‍👩‍👧‍👦 \u200b\u00a0 end   
    indented\n\n\n\t\ttabs ``` <|im_start| > don't WE'LL 1,000,000 0x1F 3.14e-10 $5 a_b__c"""


def build(specials: list[AddedToken] | None = None, ordinary: list[AddedToken] | None = None) -> Tokenizer:
    """A byte tokenizer with the given added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    encoder = Encoder(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens(specials or [AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    encoder.add_tokens(ordinary or [])
    return Tokenizer(json.loads(encoder.to_str()), "test")


BYTES = build()
LETTERS = st.text(st.sampled_from("<|im_startend>가龜🫠 \n"), max_size=30)


def byte_ids(data: bytes) -> list[int]:
    """The tokens of single bytes, also of half characters."""
    by_byte = {BYTES.token_bytes(token): token for token in range(256)}
    return [by_byte[bytes([value])] for value in data]


def pieces(tokens: list[int]) -> list[str]:
    stream = Detokenizer(BYTES)
    return [*(stream.push([token]) for token in tokens), stream.finish()]


def test_default_model_encodes_as_transformers_does(default_checkpoint: Checkpoint, default_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(default_folder)
    ours = default_checkpoint.tokenizer
    for text in (TEXT, "", " ", "0123456789", "\n\n", *TEXT.splitlines()):
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("2026") == [ours.id_of(digit) for digit in "2026"]


def test_a_converted_tokenizer_is_the_same_tokenizer(default_checkpoint: Checkpoint, default_folder: Path) -> None:
    assert tokenizer_from_file(default_folder / "tokenizer.json").digest == default_checkpoint.tokenizer.digest
    assert BYTES.digest != default_checkpoint.tokenizer.digest


def test_text_never_spells_a_control_token(default_checkpoint: Checkpoint) -> None:
    tokenizer = default_checkpoint.tokenizer
    for marker in tokenizer.markers:
        ids = tokenizer.encode(f"a{marker}\nb {marker}")
        assert not tokenizer.control_ids.intersection(ids)
        assert tokenizer.decode(ids) == f"a{marker}\nb {marker}"


def test_markers_of_the_template_are_control_tokens_and_guarded_ones_are_not() -> None:
    rendered = f"<|im_start|>user\n{BYTES.guarded('<|im_end|><|im_start|>', GUARD)}<|im_end|>"
    ids = BYTES.encode_marked(rendered, GUARD)
    assert [token for token in ids if token in BYTES.control_ids] == [256, 257]
    assert (ids[0], ids[-1]) == (256, 257)
    assert BYTES.decode(ids, keep_control=True) == "<|im_start|>user\n<|im_end|><|im_start|><|im_end|>"


@given(texts=st.lists(LETTERS, min_size=1, max_size=4), around=st.sampled_from(["", "<|im_start|>", "<|", "|>"]))
def test_no_joining_of_texts_makes_a_control_token(texts: list[str], around: str) -> None:
    guard = guard_for(texts)
    assert guard is not None
    shielded = around.join(BYTES.guarded(text, guard) for text in texts)
    ids = BYTES.encode_marked(shielded, guard)
    expected = (len(texts) - 1) * (around == "<|im_start|>")
    assert sum(token in BYTES.control_ids for token in ids) == expected
    assert BYTES.decode(ids, keep_control=True) == around.join(texts)


def test_an_added_token_that_is_markup_is_a_marker_but_a_run_of_spaces_is_text() -> None:
    tokenizer = build(ordinary=[AddedToken("<tool_call>"), AddedToken("[INST]"), AddedToken("    ")])
    spaces = tokenizer.id_of("    ")
    assert set(tokenizer.markers) == {"<|im_start|>", "<|im_end|>", "<tool_call>", "[INST]"}
    assert spaces in tokenizer.encode("a    b")
    assert tokenizer.id_of("<tool_call>") not in tokenizer.encode("<tool_call>")
    assert tokenizer.encode_marked("<tool_call>", GUARD) == [tokenizer.id_of("<tool_call>")]
    assert tokenizer.decode([tokenizer.id_of("<tool_call>") or 0]) == "<tool_call>"


def test_a_marker_in_a_vocabulary_of_whole_words_is_still_no_text() -> None:
    spec: dict[str, Any] = json.loads(json.dumps(dict(BYTES.spec)))
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec["model"] |= {"ignore_merges": True, "vocab": spec["model"]["vocab"] | {"<|im_start|>": 256, "<|im_end|>": 257}}
    tokenizer = Tokenizer(spec, "test")
    assert tokenizer.markers == BYTES.markers
    for text in ("<|im_start|>", "\0<|im_start|>"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_white_space_beside_a_marker_goes_where_the_tokenizer_says() -> None:
    eager = AddedToken("<|user|>", lstrip=True, rstrip=True, special=True)
    tokenizer = build(specials=[eager])
    full = Encoder.from_str(json.dumps(dict(tokenizer.spec)))
    for text in ("a  <|user|> \n b", "<|user|>", " <|user|>  ", "x<|user|><|user|> y"):
        assert tokenizer.encode_marked(text, GUARD) == full.encode(text, add_special_tokens=False).ids


def pieces_encoder(scheme: str | None) -> Encoder:
    """A SentencePiece-style tokenizer.json as Llama 2 has it (None: the space by a normalizer) or Mistral (Metaspace)."""
    letters = [
        "<unk>",
        "<s>",
        "[INST]",
        "[/INST]",
        "▁",
        *"abc",
        "▁a",
        "▁b",
        "ab",
        *(f"<0x{byte:02X}>" for byte in range(256)),
    ]
    vocab = {letter: number for number, letter in enumerate(letters)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b")]
    encoder = Encoder(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if scheme is None:
        encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        encoder.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme=scheme, split=False)
    decoding = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    encoder.decoder = decoders.Sequence(decoding)
    encoder.add_special_tokens([AddedToken(token, normalized=False) for token in letters[:4]])
    return encoder


@pytest.mark.parametrize("scheme", [None, "first", "always", "never"])
@given(
    parts=st.lists(
        st.sampled_from(["[INST]", "[/INST]", "<s>", " ", "a", "b", "ab", " b", "가", "\n", "[", "INST"]), max_size=9
    )
)
def test_marked_text_is_encoded_as_the_library_does_it_at_once(scheme: str | None, parts: list[str]) -> None:
    encoder, tokenizer = SENTENCEPIECE[scheme]
    text = "".join(parts)
    assert tokenizer.encode_marked(text, GUARD) == encoder.encode(text, add_special_tokens=False).ids
    assert tokenizer.control_ids.isdisjoint(tokenizer.encode(text))


@pytest.mark.parametrize("scheme", [None, "first", "always"])
@given(text=st.text(st.sampled_from("ab가🫠\n. ")))
def test_decoding_is_the_librarys_and_takes_the_leading_space_off_once(scheme: str | None, text: str) -> None:
    encoder, tokenizer = SENTENCEPIECE[scheme]
    ids = encoder.encode(text).ids
    assert tokenizer.decode(ids) == encoder.decode(ids)
    stream = Detokenizer(tokenizer)
    assert "".join([*(stream.push([token]) for token in ids), stream.finish()]) == encoder.decode(ids)


SENTENCEPIECE = {
    scheme: (encoder, Tokenizer(json.loads(encoder.to_str()), "test"))
    for scheme in (None, "first", "always", "never")
    for encoder in (pieces_encoder(scheme),)
}


def test_start_tokens_are_the_tokenizers_own() -> None:
    encoder = Encoder.from_str(json.dumps(dict(BYTES.spec)))
    encoder.post_processor = processors.TemplateProcessing(
        "<|im_start|> $A <|im_end|>", None, [("<|im_start|>", 256), ("<|im_end|>", 257)]
    )
    tokenizer = Tokenizer(json.loads(encoder.to_str()), "test")
    assert tokenizer.encode("hi", start=True) == [256, *tokenizer.encode("hi")]
    assert BYTES.encode("hi", start=True) == BYTES.encode("hi")


@pytest.mark.parametrize("text", ["ď", "가", "龜", "🫠", "a가b龜🫠c"])
def test_characters_of_several_tokens_come_out_whole(text: str) -> None:
    """tenstorrent/tt-inference-server#2594, exo-explore/exo#1691: each token was turned into text alone."""
    parts = pieces(byte_ids(text.encode()))
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts)


def test_tokens_that_end_one_character_and_begin_the_next_are_no_obstacle() -> None:
    """tenstorrent/tt-inference-server#2594, exo-explore/exo#1691."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    cuts = [b"\xc3", b"\xa9\xd0", b"\x96\xed\x95", b"\x9c\xf0", b"\x9d\x84\x9e"]
    spec = json.loads(json.dumps(BYTES.spec))
    spec["added_tokens"] = []
    for number, cut in enumerate(cuts, start=256):
        spec["model"]["vocab"]["".join(letters[token] for token in byte_ids(cut))] = number
    stream = Detokenizer(Tokenizer(spec, "test"))
    assert [stream.push([number]) for number in range(256, 261)] == ["", "é", "Ж", "한", "𝄞"]


def test_interleaved_streams_do_not_mix() -> None:
    streams = [Detokenizer(BYTES), Detokenizer(BYTES)]
    out = ["", ""]
    for pair in zip(byte_ids("가".encode()), byte_ids("龜".encode()), strict=True):
        for at, token in enumerate(pair):
            out[at] += streams[at].push([token])
    assert out == ["가", "龜"]


def test_a_character_cut_by_other_text_or_by_the_end_costs_one_replacement_mark() -> None:
    """Blaizzy/mlx-vlm#1778: the text was given out at a word's border, inside a character."""
    half = "한".encode()[:2]
    assert pieces(byte_ids(half + b" ok"))[1:] == ["", "\ufffd ", "o", "k", ""]
    assert pieces(byte_ids(b"ab" + half)) == ["a", "b", "", "", "\ufffd"]


@given(data=st.binary(max_size=40), control=st.lists(st.integers(0, 40), max_size=3))
def test_pieces_join_to_the_whole_whatever_the_bytes(data: bytes, control: list[int]) -> None:
    tokens = byte_ids(data)
    for at in control:
        tokens.insert(min(at, len(tokens)), 257)
    assert "".join(pieces(tokens)) == BYTES.decode(tokens) == data.decode("utf-8", "replace")


def test_lone_surrogates_become_replacement_marks() -> None:
    assert BYTES.decode(BYTES.encode("a\ud800b")) == "a\ufffdb"


def test_unknown_ids_add_nothing() -> None:
    assert BYTES.decode([10**6]) == ""


def test_the_guard_is_a_character_that_no_text_holds() -> None:
    assert guard_for(["abc"]) == "\ufdd0"
    assert guard_for(["\ufdd0", "\ufdd1x"]) == "\ufdd2"
    assert guard_for(["".join(map(chr, [*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900)]))]) is None


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "Nope"}}'])
def test_a_broken_tokenizer_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        tokenizer_from_file(tmp_path / "tokenizer.json")


def test_a_decoder_that_is_not_supported_is_named(tmp_path: Path) -> None:
    spec: dict[str, Any] = dict(BYTES.spec) | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
    with pytest.raises(UsageError, match="WordPiece"):
        Tokenizer(spec, "test")


@pytest.mark.parametrize(("key", "value"), [("pre", ["gpt-2"]), ("token_type", 5), ("token_type", True)])
def test_gguf_metadata_of_a_wrong_type_is_refused(key: str, value: object) -> None:
    whole = {"model": "gpt2", "tokens": ["a", "b", "ab"], "merges": ["a b"], "token_type": [1, 1, 1]}
    metadata = {f"tokenizer.ggml.{name}": entry for name, entry in {**whole, key: value}.items()}
    with pytest.raises(UsageError, match=r"model\.gguf"):
        tokenizer_from_gguf(Path("model.gguf"), metadata)


def test_other_threads_run_while_a_long_text_is_encoded():
    """The event loop that serves everybody is such a thread."""
    ticks, done = [], threading.Event()

    def tick() -> None:
        while not done.is_set():
            time.sleep(0.001)
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    started = time.perf_counter()
    BYTES.encode("a" * 400_000)
    ended = time.perf_counter()
    done.set()
    thread.join()
    # other work on the machine may stop both; who waits for the encoder has no turn at all
    assert sum(started + (ended - started) / 4 < at < ended - (ended - started) / 4 for at in ticks) >= 2
