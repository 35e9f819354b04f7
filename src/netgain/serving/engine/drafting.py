"""Where a step's drafts come from: text alone before the schedule, or a model once the schedule has given it blocks."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows

import msgspec

from netgain.serving.engine.generation import Generation
from netgain.serving.engine.model_drafts import ModelDrafts
from netgain.serving.engine.protocols import Ask, Draft, DraftControl, Load, Proposer, Turn, Verifier
from netgain.serving.engine.request import Request
from netgain.serving.engine.sequence import Sequence, SequenceState
from netgain.serving.engine.step_plan import StepPlan

NO_DRAFT = Draft(())

Generations = Mapping[str, Generation]


class AsManyAsAllowed:
    """The control that decides nothing: as many drafts as are of use, up to the configured number."""

    def limits(self, asks: Rows[Ask], load: Load) -> list[int]:
        return [ask.limit for ask in asks]

    def keep(self, asks: Rows[Ask], drafts: Rows[Draft], load: Load) -> list[int]:
        return [len(draft.tokens) for draft in drafts]

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Nothing is learnt."""

    def turned(self, load: Load, turn: Turn) -> None:
        """Nothing is learnt."""

    def end(self, request: Request, tokens: Rows[int]) -> None:
        """Nothing is kept."""


class Drafting:
    """At most `limit` drafts for every decoding request that may speculate, from one `source`, as many as `control` decides,
    judged by `verifier`.

    `unasked`, `empty` and `declined` count why decoding requests got no drafts: the control wanted none, there were none, or
    the control did not think those worth verifying.
    """

    def __init__(self, source: Proposer | ModelDrafts, verifier: Verifier, limit: int, control: DraftControl) -> None:
        self.verifier = verifier
        self.unasked = self.empty = self.declined = 0
        self._control = control
        self._proposer = None if isinstance(source, ModelDrafts) else source
        self._model = source if isinstance(source, ModelDrafts) else None
        self._limit = limit

    def before_schedule(self, running: Iterable[Sequence], generations: Generations) -> dict[str, Draft]:
        """Sets how many drafts each sequence wants room for. From text they are made here; of a model's, nothing is known yet
        but their number, at most."""
        asks: list[Ask] = []
        decoding = context = 0
        for sequence in running:
            generation = generations[sequence.id]
            # the step commits one token beyond the drafts, so the last one allowed need not be guessed
            limit = min(self._limit, sequence.max_length - sequence.length - 1)
            if sequence.state is not SequenceState.DECODING:
                continue
            decoding += 1
            context += sequence.length
            request = generation.request
            if request.max_drafts is not None and request.max_drafts < limit:
                limit = request.max_drafts
            if request.speculate and limit > 0:
                asks.append(Ask(request, generation.tokens, limit))
        if not asks:
            return {}
        load = Load(decoding, context // decoding)
        asked: list[Ask] = []
        for ask, count in zip(asks, self._control.limits(asks, load), strict=True):
            generation = generations[ask.request.id]
            generation.sequence.drafts = count
            if count:
                asked.append(ask if count == ask.limit else ask._replace(limit=count))
            else:
                self.unasked += 1
                generation.drafts.unasked += 1
        if self._proposer is None or not asked:
            return {}
        made = [
            _lawful(draft, generations[ask.request.id])
            for ask, draft in zip(asked, self._proposer.propose(asked), strict=True)
        ]
        drafts: dict[str, Draft] = {}
        for ask, draft, count in zip(asked, made, self._control.keep(asked, made, load), strict=True):
            generation = generations[ask.request.id]
            generation.sequence.drafts = count
            drafts[ask.request.id] = draft.first(count)
            if not draft.tokens:
                self.empty += 1
                generation.drafts.empty += 1
            elif not count:
                self.declined += 1
                generation.drafts.declined += 1
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
        self._model.written(plan.work)
        if not any(item.drafts for item in plan.work):
            return plan, {}
        made = await self._model.draft(plan.work, generations, self.verifier.needs_laws)
        drafts = {name: _lawful(draft, generations[name]) for name, draft in made.items()}
        work = list(plan.work)
        for index, item in enumerate(work):
            if item.drafts:
                count = len(drafts.get(item.sequence.id, NO_DRAFT).tokens)
                if not count:
                    self.empty += 1
                    generations[item.sequence.id].drafts.empty += 1
                work[index] = msgspec.structs.replace(item, count=1 + count, drafts=count)
        return msgspec.structs.replace(plan, work=tuple(work)), drafts

    @property
    def counts(self) -> dict[str, int]:
        """For EngineStats: why there were no drafts, and how often a draft model failed, which cost drafts and no answer."""
        return {
            "draft_faults": 0 if self._model is None else self._model.faults,
            "drafts_unasked": self.unasked,
            "drafts_empty": self.empty,
            "drafts_declined": self.declined,
        }

    def verified(self, generation: Generation, drafted: int, accepted: int, committed: int) -> None:
        """Of `drafted` drafts, `accepted` are part of the output, to which the step added `committed` tokens."""
        generation.drafts.add(drafted, accepted, ended=committed == accepted)
        self._control.verified(generation.request, drafted, accepted)

    def turned(self, plan: StepPlan, committed: Rows[int], seconds: float, draft_s: float) -> None:
        """The step of `plan` brought so many tokens of each work and took `seconds`, `draft_s` of them for making drafts."""
        decoding = drafts = depth = context = tokens = 0
        for work, count in zip(plan.work, committed, strict=True):
            if work.prefill:
                continue
            decoding += 1
            drafts += work.drafts
            depth = max(depth, work.drafts)
            context += work.start
            tokens += count
        if decoding:
            turn = Turn(drafts, depth, tokens, seconds, draft_s, mixed=decoding < len(plan.work))
            self._control.turned(Load(decoding, context // decoding), turn)

    def end(self, generation: Generation) -> None:
        """The request ended."""
        self._control.end(generation.request, generation.tokens)
        if self._proposer is not None:
            self._proposer.end(generation.request, generation.tokens)
        if self._model is not None:
            self._model.forget(generation.request.id)

    def close(self) -> None:
        if self._model is not None:
            self._model.close()


def _lawful(draft: Draft, generation: Generation) -> Draft:
    """As much of it as the request's grammar allows; of drafts that were sampled one more, which only the verifier may reject:
    what stands in its place has to be drawn from the residual, or the law of the text would be another."""
    if generation.constraint is None or not draft.tokens:
        return draft
    allowed = generation.constraint.allowed_drafts(draft.tokens)
    return draft.first(allowed if draft.laws is None else allowed + 1)
