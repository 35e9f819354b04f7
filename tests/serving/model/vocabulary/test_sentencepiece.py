"""SentencePiece vocabularies encode as SentencePiece does, from its own file and from a GGUF, and give every text back."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.tokenizer import Detokenizer, Tokenizer
from netgain.serving.model.vocabulary.folder import tokenizer_from_folder
from netgain.serving.model.vocabulary.gguf import tokenizer_from_gguf
from tests.serving.model.texts import TEXT, TEXTS

GUARD = "\ufdd0"
PLAIN = [text for text in TEXTS if text and "<" not in text]


def train(**options: Any) -> bytes:
    """A small model of the texts, as tokenizer.model holds it."""
    model = io.BytesIO()
    settings: dict[str, Any] = {
        "model_type": "bpe",
        "vocab_size": 1500,
        "byte_fallback": True,
        "character_coverage": 0.98,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "hard_vocab_limit": False,
        "control_symbols": ["[INST]", "[/INST]"],
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.replace("\x00", "").split("\n") * 3), model_writer=model, **(settings | options)
    )
    return model.getvalue()


MODEL = train()
SP = sentencepiece.SentencePieceProcessor(model_proto=MODEL)


def folder(path: Path, model: bytes = MODEL, **settings: Any) -> Tokenizer:
    (path / "tokenizer.model").write_bytes(model)
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer_from_folder(path)


def metadata(sp: sentencepiece.SentencePieceProcessor = SP, **more: Any) -> dict[str, Any]:
    """The same vocabulary as a GGUF carries it."""
    kinds = [
        2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in range(sp.vocab_size())
    ]
    values = {
        "model": "llama",
        "tokens": [sp.id_to_piece(i) for i in range(sp.vocab_size())],
        "scores": [sp.get_score(i) for i in range(sp.vocab_size())],
        "token_type": kinds,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in {**values, **more}.items() if value is not None}


GGUF = tokenizer_from_gguf(Path("model.gguf"), metadata())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model_type": "unigram"},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": True, "normalization_rule_name": "nmt_nfkc"},
        {"user_defined_symbols": ["    ", "\t\t", "->"]},
        {"byte_fallback": False},
    ],
)
def test_a_tokenizer_model_alone_encodes_as_sentencepiece_does(tmp_path: Path, options: dict[str, Any]) -> None:
    model = train(**options)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    ours = folder(tmp_path, model)
    for text in PLAIN:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(theirs.encode(text)) == theirs.decode(theirs.encode(text)).replace(" ⁇ ", ""), text
    assert ours.encode("a", start=True) == [1, *theirs.encode("a")]


def test_a_gguf_encodes_as_sentencepiece_does() -> None:
    for text in PLAIN:
        assert GGUF.encode(text) == SP.encode(text), text
    assert GGUF.encode("a", start=True) == [1, *SP.encode("a")]


@given(text=st.text(st.sampled_from("aefhinorst ▁\n12가龜🫠é\u0301\tक्ष"), max_size=40))
def test_any_text_is_encoded_so_and_comes_back(text: str) -> None:
    assert GGUF.encode(text) == SP.encode(text)
    assert GGUF.decode(GGUF.encode(text)) == text.replace("▁", " ")


@given(text=st.text(st.sampled_from("ab <s>/[INST]0xA")))
def test_no_text_becomes_a_control_or_byte_token(text: str) -> None:
    ids = GGUF.encode(text)
    assert GGUF.control_ids.isdisjoint(ids)
    assert GGUF.decode(ids) == text


def test_the_gguf_may_forbid_the_leading_space_and_the_start_token() -> None:
    bare = tokenizer_from_gguf(Path("model.gguf"), metadata(add_space_prefix=False, add_bos_token=False))
    assert bare.encode(" a", start=True) == SP.encode("a")
    assert bare.decode(bare.encode(" a")) == " a"
    assert bare.decode(SP.encode("a")) == " a"


def test_every_text_between_control_tokens_gets_its_leading_space() -> None:
    """As llama.cpp, and transformers with legacy behaviour; without it only the first text gets one."""
    inst, end = GGUF.markers["[INST]"], GGUF.markers["[/INST]"]
    assert GGUF.encode_marked("[INST]a[/INST]b", GUARD) == [inst, *SP.encode("a"), end, *SP.encode("b")]


def test_with_legacy_off_only_the_first_text_gets_a_leading_space(tmp_path: Path) -> None:
    ours = folder(tmp_path, legacy=False)
    bare = tokenizer_from_gguf(Path("model.gguf"), metadata(add_space_prefix=False))
    inst = ours.markers["[INST]"]
    assert ours.encode_marked("a[INST]a", GUARD) == [*SP.encode("a"), inst, *bare.encode("a")]
    assert ours.encode_marked("[INST]a", GUARD) == [inst, *bare.encode("a")]


def test_tokens_named_beside_the_model_are_added(tmp_path: Path) -> None:
    size = SP.vocab_size()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_end|>": size + 1, "<|im_start|>": size}))
    decoder = {str(size): {"content": "<|im_start|>", "special": True}, "1": {"content": "<s>", "special": True}}
    ours = folder(tmp_path, added_tokens_decoder=decoder)
    assert (ours.markers["<|im_start|>"], ours.markers["<|im_end|>"]) == (size, size + 1)
    assert ours.vocab_size == size + 2
    assert ours.control_ids >= {1, size}


def test_a_gap_in_the_added_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|im_start|>": SP.vocab_size() + 7}))
    with pytest.raises(UsageError, match="does not follow the vocabulary"):
        folder(tmp_path)


def test_the_leading_space_is_taken_off_once_at_the_start_of_a_text() -> None:
    ids = SP.encode("hello  world")
    assert GGUF.decode(ids) == "hello  world"
    assert GGUF.decode([1, *ids]) == "hello  world"
    assert GGUF.decode(ids, continues=True) == " hello  world"
    for continues, expected in ((False, "hello  world"), (True, " hello  world")):
        stream = Detokenizer(GGUF, continues=continues)
        assert "".join([*(stream.push([token]) for token in [1, *ids]), stream.finish()]) == expected


@pytest.mark.parametrize("text", ["ď", "가", "龜", "🫠", "a가b龜🫠c"])
def test_characters_of_several_byte_tokens_come_out_whole(text: str) -> None:
    ids = [GGUF.id_of(f"<0x{byte:02X}>") for byte in text.encode()]
    stream = Detokenizer(GGUF)
    parts = [*(stream.push([token or 0]) for token in ids), stream.finish()]
    assert "".join(parts) == text
    assert all("\ufffd" not in part for part in parts)


@given(ids=st.lists(st.integers(0, SP.vocab_size() + 3), max_size=30), continues=st.booleans())
def test_pieces_join_to_the_whole_whatever_the_tokens(ids: list[int], continues: bool) -> None:
    stream = Detokenizer(GGUF, continues=continues)
    joined = "".join([*(stream.push([token]) for token in ids), stream.finish()])
    assert joined == GGUF.decode(ids, continues=continues)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("scores", None, "scores"),
        ("scores", [0.0], "scores"),
        ("scores", ["a"], "scores"),
        ("token_type", [1], "token types"),
        ("tokens", ["a", "a"], "token types"),
        ("bos_token_id", 10**6, "start token"),
        ("bos_token_id", "1", "start token"),
        ("unknown_token_id", -1, "unknown token"),
        ("tokens", [f"{'x' * 5000}{i}" for i in range(SP.vocab_size())], "characters"),
        ("model", "rwkv", "rwkv"),
        ("model", None, "None"),
    ],
)
def test_damaged_metadata_is_refused(key: str, value: object, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        tokenizer_from_gguf(Path("model.gguf"), metadata(**{key: value}))


@given(data=st.data())
def test_a_damaged_tokenizer_model_is_refused_or_still_a_tokenizer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    damaged = bytearray(SMALL)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))
    try:
        tokenizer = folder(tmp_path_factory.mktemp("damaged"), bytes(damaged[:end]))
    except UsageError as error:
        reason = str(error)
    else:
        tokenizer.decode(tokenizer.encode("hello"))
        return
    assert "tokenizer.model" in reason


SMALL = train(vocab_size=600, byte_fallback=False)


@pytest.mark.parametrize("kind", ["word", "char"])
def test_other_kinds_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UsageError, match=kind):
        folder(tmp_path, train(model_type=kind, byte_fallback=False, vocab_size=100))


def test_a_folder_without_a_tokenizer_says_what_it_has_instead(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no tokenizer\.json or tokenizer\.model"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(UsageError, match=r"tekken\.json, which is not supported"):
        tokenizer_from_folder(tmp_path)


def test_a_model_with_nothing_but_tokenizer_model_chats(tiny: Callable[..., Any]) -> None:
    model = tiny(vocab_size=SP.vocab_size(), bos_token_id=1, eos_token_id=2)
    (model.folder / "tokenizer.json").unlink()
    (model.folder / "tokenizer.model").write_bytes(MODEL)
    template = "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}"
    settings = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template}
    (model.folder / "tokenizer_config.json").write_text(json.dumps(settings))
    checkpoint = open_checkpoint(model.folder)
    assert checkpoint.template is not None
    ids = checkpoint.template.encode(checkpoint.tokenizer, [{"role": "user", "content": "hello </s> [INST] world"}])
    control = [token for token in ids if token in checkpoint.tokenizer.control_ids]
    assert control == [1, SP.piece_to_id("[INST]"), SP.piece_to_id("[/INST]")]
    assert checkpoint.tokenizer.decode(ids).strip() == "hello </s> [INST] world"


def test_a_gguf_file_of_the_kind_llama_opens(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    model = tiny(vocab_size=SP.vocab_size())
    path = write_gguf(model.reference)
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(path.with_name("llama.gguf"), "llama")
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture", "tokenizer.")):
            writer.add_key_value(key, field.contents(), field.types[0])
    for key, value in metadata().items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_uint32(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = open_checkpoint(path.with_name("llama.gguf")).tokenizer
    assert [tokenizer.encode(text) for text in PLAIN] == SP.encode(PLAIN)
