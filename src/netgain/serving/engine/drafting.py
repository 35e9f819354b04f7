"""Where a step's drafts come from: text alone before the schedule, or a model once the schedule has given it blocks."""

from collections.abc import Iterable, Mapping

import msgspec

from netgain.serving.engine.generation import Generation
from netgain.serving.engine.model_drafts import ModelDrafts
from netgain.serving.engine.protocols import Ask, Draft, Proposer, Verifier
from netgain.serving.engine.scheduler import StepPlan
from netgain.serving.engine.sequence import Sequence, SequenceState

NO_DRAFT = Draft(())

Generations = Mapping[str, Generation]


class Drafting:
    """At most `limit` drafts for every decoding request that may speculate, from one `source`, judged by `verifier`."""

    def __init__(self, source: Proposer | ModelDrafts, verifier: Verifier, limit: int) -> None:
        self.verifier = verifier
        self._proposer = None if isinstance(source, ModelDrafts) else source
        self._model = source if isinstance(source, ModelDrafts) else None
        self._limit = limit

    def before_schedule(self, running: Iterable[Sequence], generations: Generations) -> dict[str, Draft]:
        """Sets how many drafts each sequence wants room for. From text they are made here; of a model's, nothing is known yet
        but their number, at most."""
        asks: list[Ask] = []
        for sequence in running:
            generation = generations[sequence.id]
            # the step commits one token beyond the drafts, so the last one allowed need not be guessed
            limit = min(self._limit, sequence.max_length - sequence.length - 1)
            if sequence.state is not SequenceState.DECODING or not generation.request.speculate or limit < 1:
                continue
            sequence.drafts = limit
            asks.append(Ask(generation.request, generation.tokens, limit))
        if self._proposer is None or not asks:
            return {}
        drafts: dict[str, Draft] = {}
        for ask, draft in zip(asks, self._proposer.propose(asks), strict=True):
            generation = generations[ask.request.id]
            drafts[ask.request.id] = lawful = _lawful(draft, generation)
            generation.sequence.drafts = len(lawful.tokens)
        return drafts

    @property
    def after_schedule(self) -> bool:
        """Whether `by_model` is to be called between schedule and execution."""
        return self._model is not None

    async def by_model(self, plan: StepPlan, generations: Generations) -> tuple[StepPlan, dict[str, Draft]]:
        """Drafts for the room that the plan has, and the plan with what of the room is used."""
        assert self._model is not None
        for sequence in plan.preempted:
            self._model.forget(sequence.id)
        made = await self._model.draft(plan.work, generations, self.verifier.needs_laws)
        drafts = {name: _lawful(draft, generations[name]) for name, draft in made.items()}
        work = list(plan.work)
        for index, item in enumerate(work):
            if item.drafts:
                count = len(drafts.get(item.sequence.id, NO_DRAFT).tokens)
                work[index] = msgspec.structs.replace(item, count=1 + count, drafts=count)
        return msgspec.structs.replace(plan, work=tuple(work)), drafts

    @property
    def faults(self) -> int:
        """How often a draft model failed, which cost drafts and no answer."""
        return 0 if self._model is None else self._model.faults

    def end(self, generation: Generation) -> None:
        """The request ended."""
        if self._proposer is not None:
            self._proposer.end(generation.request, generation.tokens)
        if self._model is not None:
            self._model.forget(generation.request.id)

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


def _lawful(draft: Draft, generation: Generation) -> Draft:
    """As much of it as the request's grammar allows."""
    if generation.constraint is None or not draft.tokens:
        return draft
    return draft.first(generation.constraint.allowed_drafts(draft.tokens))
