"""What a draft is worth: its drafts counted in the real engine, beside what looking into the text would have drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from netgain.errors import UsageError
from netgain.ledger.records import DraftCounts
from netgain.serving.engine.protocols import Proposer
from netgain.serving.engine.request import SamplingParams
from netgain.serving.model.drafts.manifest import Manifest, read_manifest
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM, Completion
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.replay import replay
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer
from netgain.serving.training.prompts import Prompt, digest, encoded, split

TEMPERATURES = (0.0, 0.7)
RUNNING = 8


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One proposer at one temperature. `acceptance[i]` is the share of steps with a draft of at least i + 1 tokens where the
    first i + 1 all stood (None: no step had one); `steps` are all decode steps, also those without drafts."""

    proposer: str
    temperature: float
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    acceptance: tuple[float | None, ...]
    steps: int
    tokens: int
    committed_per_step: float | None


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """`replayed` proposers were read off the same replies, which is exact under the coupled verifier; the draft's drafts were
    made and verified by the engine."""

    draft: str
    kind: str
    target: str
    prompts: int
    prompts_digest: str
    held_out_only: bool
    k: int
    max_tokens: int
    verifier: str
    rows: tuple[Measured, ...]
    replayed: tuple[str, ...] = ("ngram", "suffix")

    def row(self, proposer: str, temperature: float) -> Measured:
        return next(row for row in self.rows if (row.proposer, row.temperature) == (proposer, temperature))


def evaluate(
    source: str,
    folder: Path,
    prompts: Sequence[Prompt],
    *,
    k: int | None = None,
    max_tokens: int = 128,
    threads: int | None = None,
    tell: Callable[[str, float], None] = lambda stage, share: None,
) -> Evaluation:
    """Answers `prompts` greedily and at temperature 0.7 with drafts verified by the coupled verifier. Of the very prompts
    that the draft was trained on only the held-out ones are taken.

    Raises UsageError for a draft that does not fit the target, and for prompts that leave nothing to measure.
    """
    manifest = read_manifest(folder)
    k = k or manifest.positions
    own = manifest.recipe.get("prompts") == digest(prompts)
    chosen = split(prompts)[1] if own else list(prompts)
    if not chosen:
        raise UsageError("none of these prompts was held out when the draft was trained; give others (--prompts)")
    config = EngineConfig.model_validate(
        {
            "model": {"source": source, "threads": threads},
            "cache": {"kv_tokens": 16_384},
            "scheduler": {"max_running": RUNNING, "max_waiting": max(RUNNING, len(chosen))},
            "speculation": {"method": "draft", "draft": str(folder), "k": k, "verifier": "coupled"},
        }
    )
    rows: list[Measured] = []
    with LLM(config) as llm:
        loaded = llm.built.loaded
        ids = [encoded(prompt, loaded.tokenizer, loaded.template) for prompt in chosen]
        for turn, temperature in enumerate(TEMPERATURES):
            tell(f"temperature {temperature:g}", turn / len(TEMPERATURES))
            sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1)
            before = llm.built.engine.stats()
            answers = llm.generate(ids, sampling)
            after = llm.built.engine.stats()
            for answer in answers:
                if answer.error is not None:
                    raise UsageError(f"the target could not answer a prompt: {answer.error}")
            committed = after.draft_committed_tokens - before.draft_committed_tokens
            rows.append(_made(manifest, temperature, answers, committed))
            rows += [_replayed(name, proposer, temperature, answers, max_tokens) for name, proposer in _others(k)]
        tell("done", 1.0)
        name = loaded.name
    return Evaluation(
        draft=str(folder),
        kind=manifest.kind,
        target=name,
        prompts=len(chosen),
        prompts_digest=digest(chosen),
        held_out_only=own,
        k=k,
        max_tokens=max_tokens,
        verifier="coupled",
        rows=tuple(rows),
    )


def _others(k: int) -> tuple[tuple[str, Proposer], ...]:
    """With the settings that a server has by default."""
    return ("ngram", NgramProposer(k, 2, 4)), ("suffix", SuffixProposer(k, SuffixOptions()))


def _made(manifest: Manifest, temperature: float, answers: Sequence[Completion], committed: int) -> Measured:
    """A decode step without drafts commits one token, so they are what is left of the tokens behind the first ones."""
    counts = [answer.trace.drafts for answer in answers]
    tokens = sum(len(answer.output_ids) - 1 for answer in answers)
    steps = sum(one.steps for one in counts) + tokens - committed
    return _measured(manifest.kind, temperature, counts, steps, tokens)


def _replayed(
    name: str, proposer: Proposer, temperature: float, answers: Sequence[Completion], max_tokens: int
) -> Measured:
    traces = [replay(answer.prompt_ids, answer.output_ids, proposer, max_tokens) for answer in answers]
    steps, tokens = sum(len(trace.steps) for trace in traces), sum(trace.committed for trace in traces)
    return _measured(name, temperature, [trace.counts for trace in traces], steps, tokens)


def _measured(name: str, temperature: float, counts: Sequence[DraftCounts], steps: int, tokens: int) -> Measured:
    longest = max((len(one.drafted) for one in counts), default=0)
    drafted = _summed([one.drafted for one in counts], longest)
    accepted = _summed([one.accepted for one in counts], longest)
    return Measured(
        proposer=name,
        temperature=temperature,
        drafted=drafted,
        accepted=accepted,
        acceptance=tuple(good / all_ if all_ else None for good, all_ in zip(accepted, drafted, strict=True)),
        steps=steps,
        tokens=tokens,
        committed_per_step=tokens / steps if steps else None,
    )


def _summed(lists: Sequence[Sequence[int]], length: int) -> tuple[int, ...]:
    return tuple(sum(one[place] for one in lists if place < len(one)) for place in range(length))
