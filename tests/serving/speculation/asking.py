"""Asks proposers as the engine does, one request at a time."""

from netgain.serving.engine.protocols import Ask, Draft
from netgain.serving.engine.request import Request, SamplingParams


def request(name="r", prompt=(), salt=b"", **more) -> Request:
    return Request(id=name, prompt=tuple(prompt), sampling=SamplingParams(max_tokens=999), salt=salt, **more)


def draft(proposer, tokens, limit=99, one: Request | None = None) -> Draft:
    return proposer.propose((Ask(one or request(), tokens, limit),))[0]
