"""Scores the second half of texts behind a first half whose KV a server loads from its tiers: what a lossy codec does to KV shows
nowhere else, since a prompt that is scored whole is computed whole."""

import asyncio

import msgspec

from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.teacher_forcing import Form, Scored, Teacher, Unscored
from netgain.measuring.quality.texts import Text

LARGEST_BLOCK = 128  # tokens: of the first half so much may be missing, since whole blocks are loaded
_SHORTEST = 32  # tokens of a text with two halves
_TRIES, _BETWEEN_S = 40, 0.1  # storing goes on behind the answer


async def score_computed(teacher: Teacher, text: Text, form: Form) -> Scored | Unscored:
    """The second half of the text, all of it computed."""
    found = await teacher.score(text, form)
    if isinstance(found, Unscored):
        return found
    first = half_of(len(found.tokens))
    if first is None:
        return _too_short(text, len(found.tokens))
    return msgspec.structs.replace(found, laws=found.laws[len(found.laws) - (len(found.tokens) - first - 1) :])


async def score_loaded(teacher: Teacher, text: Text, form: Form) -> Scored | Unscored:
    """The second half behind the first as it comes back from the server's KV tiers; unscored where it does not come."""
    stored = await teacher.ask(text, form, max_tokens=1, echo=False)
    if isinstance(stored, str):
        return Unscored(name=text.name, reason=stored)
    if stored.prompt_tokens is None:
        return Unscored(name=text.name, reason="it does not say how many tokens the prompt has")
    first = half_of(stored.prompt_tokens)
    if first is None:
        return _too_short(text, stored.prompt_tokens)
    asked = {"from_tiers": True, "logprobs_from": first, "record": True}
    reason = ""
    for _ in range(_TRIES):
        told = await teacher.ask(text, form, max_tokens=1, echo=True, netgain=asked)
        if isinstance(told, str):
            return Unscored(name=text.name, reason=told)
        came = 0 if told.loaded is None else told.loaded.loaded_tokens
        if came and came > first - LARGEST_BLOCK:
            laws = told.laws[first + 1 : stored.prompt_tokens]
            known: tuple[Law, ...] = tuple(law for law in laws if law is not None)
            if not known or len(known) < len(laws):
                return Unscored(
                    name=text.name, reason=f"{len(laws) - len(known)} of {len(laws)} positions have no value"
                )
            return Scored(text=text, tokens=told.tokens[: stored.prompt_tokens], laws=known, loaded=told.loaded)
        reason = f"of the first {first} tokens, KV of {came} came from its tiers"
        await asyncio.sleep(_BETWEEN_S)
    return Unscored(name=text.name, reason=reason)


def half_of(tokens: int) -> int | None:
    """How many tokens stand before those that are scored; None for a text that is too short for that."""
    return tokens // 2 if tokens >= _SHORTEST else None


def _too_short(text: Text, tokens: int) -> Unscored:
    return Unscored(name=text.name, reason=f"{tokens} tokens are too few to load a half of them")
