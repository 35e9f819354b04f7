"""Events cut around their text are byte for byte those that the encoder makes."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.api.frame import Frame, event
from netgain.serving.api.shapes import ChatDelta, Delta, Form, TextChoice, Usage, usage_of

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def form(chat: bool, model: str) -> Form:
    return Form(id="x-1", created=1, model=model, fingerprint="fp", chat=chat)


@given(TEXTS, TEXTS, st.booleans(), st.none() | st.integers(0, 10**6), st.none() | st.integers(0, 100))
def test_a_framed_event_is_the_encoders_own(
    text: str, model: str, chat: bool, completion: int | None, thoughts: int | None
) -> None:
    def made(words: str, usage: Usage | None) -> bytes:
        chunk = ChatDelta(3, Delta(content=words)) if chat else TextChoice(3, words)
        return event(form(chat, model).answer((chunk,), usage, chunk=True))

    start = None if completion is None else usage_of(7, 0, None, None)
    usage = None if completion is None else usage_of(7, completion, None, thoughts)
    frame = Frame(lambda words: made(words, start), start)
    assert frame.event(text, usage) == made(text, usage)
