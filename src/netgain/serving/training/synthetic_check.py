"""What steps cost in this engine, and whether drafts of assumed acceptance bring here what is predicted from that."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from netgain.cost.break_even import Checked, speedup_of, surface, survival_of
from netgain.cost.step_cost import StepCost
from netgain.errors import UsageError
from netgain.ledger.collector import Collector
from netgain.ledger.records import StepRecord
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.llm import LLM

ROOM = 640  # KV tokens of a request of the largest batch
LEAST_PROMPT = 8
Tell = Callable[[str, float], None]
"""Hears what is measured and the share of it that is done."""


class SyntheticCheck:
    """Engines over one model, which differ in their drafts only. A context manager."""

    def __init__(self, model: Mapping[str, object], largest_batch: int) -> None:
        """`model` is the part `engine.model` of a configuration. Raises UsageError for one that cannot be loaded."""
        self._model, self._largest_batch = dict(model), largest_batch
        self._plain = _Arm(self._model, largest_batch, {})

    def __enter__(self) -> SyntheticCheck:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._plain.close()

    @property
    def info(self) -> Mapping[str, Any]:
        return self._plain.llm.built.info

    def curve(self, seconds: float) -> StepCost:
        """Measured now; kept for engines of the same subject, as any curve is."""
        return asyncio.run(self._plain.llm.built.engine.measure_step_cost(seconds, self._largest_batch))

    def check(
        self,
        cost: StepCost,
        acceptances: Sequence[float],
        k: int,
        batches: Sequence[int],
        *,
        context: int,
        tokens: int,
        rounds: int,
        tell: Tell = lambda what, share: None,
    ) -> tuple[Checked, ...]:
        """Answers of `tokens` tokens to made-up prompts, so that requests have `context` tokens half way; all engines in turns
        within a round. Raises UsageError for what leaves nothing to measure."""
        if max(batches) > self._largest_batch:
            raise UsageError(f"{max(batches)} requests at once are more than the {self._largest_batch} of this curve")
        if tokens < 2 * (k + 1):
            raise UsageError(f"answers of {tokens} tokens are too short for steps of {k} drafts; give {2 * (k + 1)}")
        prompt = max(LEAST_PROMPT, context - tokens // 2)
        if prompt + tokens > ROOM:
            raise UsageError(f"{prompt} tokens before answers of {tokens} are more than the {ROOM} there is room for")
        arms: dict[float | None, _Arm] = {None: self._plain}
        try:
            for chance in acceptances:
                drafts = {"method": "synthetic", "k": k, "synthetic_rates": list(survival_of(chance, k))}
                arms[chance] = _Arm(self._model, self._largest_batch, drafts)
            seen: dict[tuple[float | None, int], list[_Seen]] = {}
            order = list(arms)
            for number in range(-1, rounds):  # the first one only warms up
                for batch in batches:
                    for chance in order:
                        drafts_each = 0 if chance is None else k
                        found = arms[chance].run(batch, prompt, tokens, drafts_each, number)
                        if number >= 0:
                            seen.setdefault((chance, batch), []).append(found)
                    tell(f"{batch} at once", max(0, number) / rounds)
                order.append(order.pop(0))
        finally:
            for arm in arms.values():
                if arm is not self._plain:
                    arm.close()
        tell("done", 1.0)
        return tuple(
            _checked(cost, chance, k, batch, context, seen[None, batch], seen[chance, batch])
            for batch in batches
            for chance in acceptances
        )


class _Seen(msgspec.Struct, frozen=True):
    """The steps of one round that count: how many, their seconds and the tokens that they committed."""

    steps: int
    seconds: float
    committed: int


class _Arm:
    def __init__(self, model: Mapping[str, object], largest_batch: int, speculation: Mapping[str, object]) -> None:
        self._steps: list[StepRecord] = []
        config = EngineConfig.model_validate(
            {
                "model": model,
                "cache": {"kv_tokens": largest_batch * ROOM},
                "scheduler": {"max_running": largest_batch, "max_waiting": largest_batch},
                "step_cost": {"refresh": "never"},
                "speculation": speculation,
            }
        )
        self.llm = LLM(config, Collector(on_step=(self._steps.append,)))

    def close(self) -> None:
        self.llm.close()

    def run(self, batch: int, prompt: int, tokens: int, drafts: int, number: int) -> _Seen:
        """One round. Only steps in which all requests decode with `drafts` drafts each are counted."""
        self._steps.clear()
        words = int(self.llm.built.info["vocab_size"])
        prompts = [[(3 + 7 * place + 31 * index) % words for place in range(prompt)] for index in range(batch)]
        sampling = [
            SamplingParams(max_tokens=tokens, temperature=0.0, seed=batch * (number + 1) + index, ignore_eos=True)
            for index in range(batch)
        ]
        for answer in self.llm.generate(prompts, sampling):
            if answer.error is not None:
                raise UsageError(f"the model could not answer: {answer.error}")
        counted = [step for step in self._steps if _counts(step, batch, drafts)]
        if not counted:
            raise UsageError(
                f"of {batch} requests at once no step had {drafts} drafts of each; ask for longer answers (--check-tokens)"
            )
        seconds = sum(step.finished_s - step.started_s for step in counted)
        return _Seen(len(counted), seconds, sum(share.committed_tokens for step in counted for share in step.shares))


def _counts(step: StepRecord, batch: int, drafts: int) -> bool:
    return len(step.shares) == batch and all(
        share.prefill_tokens == 0 and share.draft_tokens == drafts for share in step.shares
    )


def _checked(
    cost: StepCost,
    chance: float,
    k: int,
    batch: int,
    context: int,
    plain: Sequence[_Seen],
    drafting: Sequence[_Seen],
) -> Checked:
    pairs = list(zip(plain, drafting, strict=True))
    ratios = [(own.committed / own.seconds) / (base.committed / base.seconds) for base, own in pairs]
    dearer = [(own.seconds / own.steps) / (base.seconds / base.steps) for base, own in pairs]
    survival = survival_of(chance, k)
    column = surface(cost, lengths=(k,), batches=(batch,), context=context).column(batch, k)
    verify = None if column is None else column.verify
    return Checked(
        acceptance=chance,
        k=k,
        batch=batch,
        predicted_speedup=None if verify is None else speedup_of(survival, verify, 0.0),
        measured_speedup=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        predicted_committed=1.0 + sum(survival),
        measured_committed=sum(own.committed for own in drafting) / sum(own.steps * batch for own in drafting),
        predicted_verify=verify,
        measured_verify=statistics.median(dearer),
        predicted_plain_s=None if column is None else column.step_s / column.verify,
        measured_plain_s=statistics.median(base.seconds / base.steps for base in plain),
        rounds=len(pairs),
        steps=sum(own.steps for own in drafting),
    )
