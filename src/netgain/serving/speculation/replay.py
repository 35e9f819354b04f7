"""Shadow replay: what a proposer would have committed, step by step, read off an output that was recorded without it.

Exact for verifiers that keep the output token for token (greedy, or the coupled verifier at any temperature): there the
recorded output says how every draft would have been judged.
"""

from collections.abc import Sequence

import msgspec

from netgain.ledger.records import DraftCounts
from netgain.serving.engine.finish import drafts_kept
from netgain.serving.engine.protocols import Ask, Proposer
from netgain.serving.engine.request import Request, SamplingParams


class ReplayStep(msgspec.Struct, frozen=True):
    """One step after the first token: `drafted` tokens proposed, `accepted` of them part of the output, `committed` in all.

    `drafted` 0 is an ordinary decode step.
    """

    drafted: int
    accepted: int
    committed: int


class ReplayTrace(msgspec.Struct, frozen=True):
    """The steps behind the first token, which comes from the prompt's last step and is not counted here."""

    steps: tuple[ReplayStep, ...]

    @property
    def committed(self) -> int:
        return sum(step.committed for step in self.steps)

    @property
    def committed_per_step(self) -> float | None:
        """1.0 without speculation; None for an output of one token."""
        return self.committed / len(self.steps) if self.steps else None

    @property
    def counts(self) -> DraftCounts:
        """Acceptance per position and per draft length, as the engine counts it (steps with drafts only)."""
        counts = DraftCounts()
        for step in self.steps:
            if step.drafted:
                counts.add(step.drafted, step.accepted, ended=step.committed == step.accepted)
        return counts


def replay(
    prompt: Sequence[int],
    output: Sequence[int],
    proposer: Proposer,
    max_tokens: int | None = None,
    salt: bytes = b"",
    name: str = "replay",
) -> ReplayTrace:
    """Walk `output` as the engine with `proposer` would have committed it after `prompt`.

    A proposer that learns from finished requests of a `salt` has learnt from this one afterwards: replay requests in the
    order of their ends. `name` is the request's id.

    `output` ends with its stop token, if it had one. `max_tokens` is the limit the request ran under (None: the length of
    `output`); it caps the drafts, so that no step can commit more than remained. What the engine may add, shorter drafts
    under a full token budget or a full KV pool, is not replayed.
    """
    limit = len(output) if max_tokens is None else max_tokens
    request = Request(id=name, prompt=tuple(prompt), sampling=SamplingParams(max_tokens=max(1, limit)), salt=salt)
    text = [*prompt, *output[:1]]
    done = len(output[:1])
    steps: list[ReplayStep] = []
    try:
        while done < len(output):
            room = limit - done - 1
            drafts = proposer.propose((Ask(request, text, room),))[0].tokens[:room] if room > 0 else ()
            accepted = drafts_kept(drafts, output[done:])
            # One more than was accepted, unless the accepted tokens end with the output's own end.
            committed = min(accepted + 1, len(output) - done)
            steps.append(ReplayStep(len(drafts), accepted, committed))
            text.extend(output[done : done + committed])
            done += committed
    finally:
        proposer.end(request, text)
    return ReplayTrace(tuple(steps))
