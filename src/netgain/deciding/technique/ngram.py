"""n-gram speculation (prompt lookup): predicted by replaying it on the recorded outputs and charging what a step costs."""

import itertools

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.ngram_switches import ngram_switch
from netgain.deciding.technique.prediction import Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.technique.replayed import (
    MUST_REPORT,
    RELIEVES,
    cannot_judge_copies,
    cannot_replay,
    measured_drafts,
    predict_by_replay,
)
from netgain.errors import UsageError
from netgain.serving.speculation.ngram import NgramProposer

LOOKUPS = ((1, 3), (2, 4), (3, 5))  # (shortest, longest) suffix looked up


class NgramSpeculation:
    """Drafts copied from the request's own text, verified by the target in one pass, token-identical."""

    name = "ngram"
    title = "n-gram speculation (prompt lookup)"
    relieves = RELIEVES
    brings = "wider passes to verify drafts, the look-up itself, and work on drafts that are rejected"
    kind: Kind = "token-identical"
    reuses = False
    must_report = MUST_REPORT

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return cannot_judge_copies(synthetic_text)

    def cannot_apply(self, facts: Facts) -> str | None:
        return cannot_replay(facts)

    def predict(self, facts: Facts) -> Prediction:
        """The best of all measured lengths and look-ups."""
        if facts.step_cost is None:
            raise UsageError("n-gram speculation cannot be predicted without a measured step cost")
        settings: list[tuple[Setting, NgramProposer]] = [
            ({"k": k, "lookup_min": shortest, "lookup_max": longest}, NgramProposer(k, shortest, longest))
            for (shortest, longest), k in itertools.product(LOOKUPS, measured_drafts(facts.step_cost))
        ]
        return predict_by_replay(self.name, facts, settings)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return ngram_switch(engine, setting)
