"""Greedy answers of two arms of one engine that differ: whether they part where the engine itself had nearly chosen otherwise.

Both answers are read as token ids by the engine's own tokenizer up to where they part, and both servers are asked for their law
there. What cannot be asked (no tokenizer, no log-probabilities) leaves a parting unknown.
"""

import math
from collections.abc import Mapping, Sequence

import aiohttp

from netgain.deciding.decide.outside import ASK_S, prompt_ids, token_ids
from netgain.deciding.experiment.arm import Arm
from netgain.errors import Unavailable
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Engine
from netgain.measuring.quality.identity import compare_outputs
from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.near_ties import Parting
from netgain.measuring.quality.teacher_forcing import Form, Teacher
from netgain.measuring.quality.texts import Text
from netgain.measuring.workload.item import Item

FORM = Form(20, True)  # only ids can be told apart for certain
Answers = tuple[ClientRecord, ClientRecord]  # one of the baseline, and one of the candidate that differs from it


async def look_at(
    arms: tuple[Arm, Arm], engine: Engine, model: str, items: Mapping[str, Item], answers: Sequence[Answers]
) -> tuple[Parting, ...]:
    """Where each pair parts, in their order; those of which nothing can be known have position -1 and no gap."""
    try:
        async with (
            _teacher(arms[0], model) as baseline,
            _teacher(arms[1], model) as candidate,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S), headers=arms[0].headers) as session,
        ):
            found, url = [], arms[0].url
            for pair in answers:
                item = items.get(pair[0].item_id)
                prompt = None if item is None else await prompt_ids(session, url, engine, model, item)
                said = [None if one.reasoning else await _ids(session, url, engine, model, one) for one in pair]
                if prompt is None or said[0] is None or said[1] is None:
                    found.append(_unknown(pair))
                    continue
                found.append(await _parting(pair, prompt, said[0], said[1], (baseline, candidate)))
            return tuple(found)
    except Unavailable:
        return tuple(map(_unknown, answers))


def _teacher(arm: Arm, model: str) -> Teacher:
    return Teacher(arm.url, model, timeout_s=ASK_S, headers=dict(arm.headers))


async def _ids(
    session: aiohttp.ClientSession, url: str, engine: Engine, model: str, record: ClientRecord
) -> tuple[int, ...] | None:
    return await token_ids(session, url, engine, model, record.text) if record.text else ()


def _unknown(pair: Answers) -> Parting:
    return Parting(prompt=pair[0].item_id, position=-1, baseline=None, candidate=None, gap=None)


async def _parting(
    pair: Answers,
    prompt: tuple[int, ...],
    ours: tuple[int, ...],
    theirs: tuple[int, ...],
    teachers: tuple[Teacher, Teacher],
) -> Parting:
    place = compare_outputs(ours, theirs).first_difference
    if place is None:  # the texts differ and their tokens do not: nothing to ask
        return _unknown(pair)
    text = Text(name=pair[0].item_id, category="parting", prompt=(*prompt, *ours[:place]))
    laws = [_only(await teacher.say(text, FORM, 1)) for teacher in teachers]
    own = [
        f"token_id:{ids[place]}" if place < len(ids) else None if law is None else law.token
        for ids, law in zip((ours, theirs), laws, strict=True)
    ]  # where an answer ended, the token that ended it is what its server says there now
    gaps = [
        gap
        for law, token, other in ((laws[0], own[0], own[1]), (laws[1], own[1], own[0]))
        if law is not None and (gap := _gap(law, token, other)) is not None
    ]
    return Parting(
        prompt=pair[0].item_id, position=place, baseline=own[0], candidate=own[1], gap=min(gaps, default=None)
    )


def _only(laws: object) -> Law | None:
    return laws[0] if isinstance(laws, tuple) and laws else None


def _gap(law: Law, own: str | None, other: str | None) -> float | None:
    """How far apart a server finds its own token and the other's, whichever it prefers now that it is asked again; None where it
    does not show both."""
    if own is None or other is None or own not in law.top or other not in law.top:
        return None
    gap = abs(law.top[own] - law.top[other])
    return gap if math.isfinite(gap) else None
