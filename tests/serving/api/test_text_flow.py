"""However the engine cuts an answer into outputs, a client gets the same text, log-probabilities and end."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("torch")

from netgain.serving.api.choice import Choice
from netgain.serving.api.logprobs import Spelling, prompt_entries, text_logprobs
from netgain.serving.api.prepare import Job, Presentation
from netgain.serving.api.shapes import text_of
from netgain.serving.api.text_flow import TextFlow
from netgain.serving.engine.request import Output, SamplingParams, TokenLogprobs
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.model.vocabulary.folder import tokenizer_from_file
from netgain.serving.model.vocabulary.sentencepiece import Pieces, spec_of

BYTES = "aab가é ".encode()
IM_END = 257


@pytest.fixture(scope="module")
def tokenizer(chain_model) -> Tokenizer:
    return tokenizer_from_file(chain_model.folder / "tokenizer.json")


def law(position: int) -> TokenLogprobs:
    """Different for every position."""
    return TokenLogprobs(-float(position), ((5, -0.5),))


def answer(tokenizer, tokens, cuts, *, stops=(), ends="length", min_tokens=0, include=False, top=1):
    """The pieces of a choice whose tokens come in outputs of the given sizes, the last with the finish reason."""
    sampling = SamplingParams(max_tokens=len(tokens), min_tokens=min_tokens, logprobs=top)
    choice = Choice(
        "id",
        Job(index=0, choice=0, prompt=(1,), sampling=sampling),
        tokenizer,
        Presentation(stops=tuple(stops), include_stop=include, top=top),
    )
    pieces, at, number = [], 0, 0
    while not choice.closed:
        size = cuts[number % len(cuts)]
        part = tuple(tokens[at : at + size])
        last = at + size >= len(tokens)
        laws = tuple(law(at + index) for index in range(len(part))) if top is not None else ()
        pieces.append(
            choice.take(
                Output(request_id="id", tokens=part, logprobs=laws, finish_reason=ends if last else None, trace=None)
            )
        )
        at, number = at + size, number + 1
    return choice, pieces


def joined(pieces):
    text = "".join(text_of(piece.parts) for piece in pieces)
    return text, [entry for piece in pieces for entry in piece.entries]


TOKENS = st.lists(st.sampled_from([*BYTES]), min_size=1, max_size=24).map(lambda data: [ord_to_id(b) for b in data])
STOPS = st.lists(st.sampled_from(["a", "ab", "aab", "가", "b가", "\ufffd", "a ", " "]), max_size=3)
CUTS = st.lists(st.integers(1, 6), min_size=1, max_size=8)


def ord_to_id(byte: int) -> int:
    """The chain model's byte tokens in the order of their letters; see conftest."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [code for code in range(256) if code not in shown]
    letters = {code: chr(code) for code in shown} | {code: chr(0x100 + at) for at, code in enumerate(hidden)}
    return sorted(letters.values()).index(letters[byte])


@given(TOKENS, STOPS, CUTS, st.sampled_from(["length", "stop"]), st.integers(0, 5), st.booleans())
@example([ord_to_id(b) for b in "가".encode()], ["가"], [2], "length", 0, False)
def test_any_cut_gives_the_same_text_logprobs_and_end(tokenizer, tokens, stops, cuts, ends, min_tokens, include):
    options = {"stops": stops, "min_tokens": min(min_tokens, len(tokens)), "include": include}
    tokens = [*tokens[:-1], IM_END] if ends == "stop" else tokens
    one, by_one = answer(tokenizer, tokens, [1], ends=ends, **options)
    cut, by_cut = answer(tokenizer, tokens, cuts, ends=ends, **options)
    whole, at_once = answer(tokenizer, tokens, [len(tokens)], ends=ends, **options)
    assert joined(by_one) == joined(by_cut) == joined(at_once)
    assert one.tokens == cut.tokens == whole.tokens
    assert one.finish_reason == cut.finish_reason == whole.finish_reason
    assert one.stop_reason == cut.stop_reason == whole.stop_reason
    plain, without = answer(tokenizer, tokens, cuts, ends=ends, top=None, **options)
    assert joined(without)[0] == joined(by_cut)[0]  # asking for log-probabilities changes no text
    assert plain.tokens == cut.tokens


@given(TOKENS, STOPS, CUTS)
def test_every_counted_token_has_its_logprob_once_and_in_order(tokenizer, tokens, stops, cuts):
    choice, pieces = answer(tokenizer, tokens, cuts, stops=stops)
    _, entries = joined(pieces)
    assert [entry.token for entry in entries] == choice.tokens
    assert [entry.law for entry in entries] == [law(at) for at in range(len(choice.tokens))]


@given(TOKENS, CUTS)
def test_in_every_piece_text_and_tokens_say_the_same(tokenizer, tokens, cuts):
    _, pieces = answer(tokenizer, tokens, cuts, stops=["aab"], min_tokens=len(tokens))
    at = 0
    for piece in pieces[:-1]:
        data = b"".join(tokenizer.token_bytes(entry.token) for entry in piece.entries)
        assert data.decode("utf-8", "replace") == text_of(piece.parts)
        for entry in piece.entries:
            assert entry.offset >= at
            at = entry.offset


@given(TOKENS, STOPS, CUTS)
def test_the_text_is_that_of_the_tokens_up_to_the_first_complete_stop(tokenizer, tokens, stops, cuts):
    """SharpAI/SwiftLM#126."""
    _, pieces = answer(tokenizer, tokens, cuts, stops=stops)
    full = tokenizer.decode(tokens)
    expected = full
    for end in range(1, len(full) + 1):
        if matching := [stop for stop in stops if full[:end].endswith(stop)]:
            expected = full[: end - max(map(len, matching))]
            break
    assert joined(pieces)[0] == expected


def test_a_stop_string_waits_for_min_tokens(tokenizer):
    tokens = [ord_to_id(b) for b in b"ab ab ab"]
    texts = {
        least: joined(answer(tokenizer, tokens, [1], stops=["ab"], min_tokens=least)[1])[0] for least in (0, 2, 3, 6)
    }
    assert texts == {0: "", 2: "", 3: "ab ", 6: "ab ab "}


def test_an_included_stop_string_is_part_of_the_answer(tokenizer):
    tokens = [ord_to_id(b) for b in b"a b a"]
    choice, pieces = answer(tokenizer, tokens, [2], stops=["b"], include=True)
    assert joined(pieces)[0] == "a b"
    assert (choice.finish_reason, choice.stop_reason, len(choice.tokens)) == ("stop", "b", 3)


def test_part_of_a_character_is_spelled_by_its_bytes(tokenizer):
    tokens = [ord_to_id(b) for b in "é!".encode()]
    _, pieces = answer(tokenizer, tokens, [1])
    lists = text_logprobs(joined(pieces)[1], 1, Spelling(tokenizer))
    assert lists.tokens == ("bytes:\\xc3", "bytes:\\xa9", "!")
    assert lists.text_offset == (0, 0, 1)
    assert [len(top) for top in lists.top_logprobs] == [2, 2, 2]  # the most likely one, and the token itself


@pytest.mark.parametrize(("continues", "expected"), [(False, "a b"), (True, " a b")])
def test_a_leading_space_stays_only_where_a_text_goes_on(continues: bool, expected: str) -> None:
    """SentencePiece puts a space before every text: an answer in a chat shall not begin with it, a completion needs it."""
    pieces = Pieces(["<unk>", "▁a", "▁b"], [0.0, -1.0, -2.0], [2, 1, 1], unigram=False, unknown=0, start=None)
    flow = TextFlow(Tokenizer(spec_of(pieces, "test"), "test"), continues=continues)
    assert "".join([*(flow.push(token).text for token in (1, 2)), flow.finish().text]) == expected


PIECES = ("one gr", "la ", "answer", b"a", b"\xea", b"\xb0", b"\x80", b"\xed", b"\xf0", b"\xff")


@given(st.lists(st.sampled_from(PIECES), max_size=12))
@example([b"\xed", "one gr"])
@example([b"\xed", b"\xb0", "one gr"])
def test_every_token_that_is_text_stands_at_its_offset(tokenizer, chain_model, pieces):
    """Also behind a character that was cut off, of which a replacement mark is left; in an answer as in an echoed prompt."""
    tokens = [chain_model.spelled[piece] for piece in pieces]
    flow = TextFlow(tokenizer, entries=True)
    flowed = [flow.push(token, law(0)) for token in tokens]
    flowed.append(flow.finish())
    text = "".join(part.text for part in flowed)
    assert text == tokenizer.decode(tokens)
    answered = [entry for part in flowed for entry in part.entries]
    for entries in (answered, prompt_entries(tokens, [law(0)] * len(tokens), tokenizer)):
        assert [entry.token for entry in entries] == tokens
        for entry, piece in zip(entries, pieces, strict=True):
            assert isinstance(piece, bytes) or text[entry.offset :].startswith(piece)
