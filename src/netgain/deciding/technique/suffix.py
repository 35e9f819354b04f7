"""Suffix decoding: predicted by replaying it on the recorded outputs, each of which serves the requests that arrived after."""

import itertools

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
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
from netgain.deciding.technique.suffix_switches import suffix_switch
from netgain.errors import UsageError
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer

FACTORS = (1.0, 2.0, 4.0)  # drafts per matched token
SHORTEST = 3  # fewer drafts leave nothing to decide by the length of the match


class SuffixSpeculation:
    """Drafts from the request's own text and from finished answers, as long as the match is; token-identical."""

    name = "suffix"
    title = "suffix decoding"
    relieves = RELIEVES
    brings = (
        "wider passes to verify drafts, look-ups and counting on every step, memory for finished answers, and work on drafts "
        "that are rejected"
    )
    kind: Kind = "token-identical"
    reuses = False
    must_report = (*MUST_REPORT, "memory of the suffix indexes, and how similar requests are to earlier ones")

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return cannot_judge_copies(synthetic_text)

    def cannot_apply(self, facts: Facts) -> str | None:
        if reason := cannot_replay(facts):
            return reason
        if facts.step_cost is not None and max(measured_drafts(facts.step_cost)) < SHORTEST:
            return f"no verification of {SHORTEST} drafts or more was measured, and its drafts are worth having only when long"
        return None

    def predict(self, facts: Facts) -> Prediction:
        """The best of all measured lengths and factors. Exact at one request at a time; else a request is taken to know only
        what had finished when it arrived."""
        if facts.step_cost is None:
            raise UsageError("suffix decoding cannot be predicted without a measured step cost")
        lengths = [k for k in measured_drafts(facts.step_cost) if k >= SHORTEST]
        settings: list[tuple[Setting, SuffixProposer]] = [
            ({"k": k, "factor": factor}, SuffixProposer(k, SuffixOptions(factor=factor)))
            for factor, k in itertools.product(FACTORS, lengths)
        ]
        said = [
            "every recorded answer serves later requests; an experiment asks each block under a cache salt of its own, so "
            "there an answer serves its block only",
        ]
        if facts.concurrency > 1:
            said.append("answers that ended while another request ran did not serve that one in the replay")
        return predict_by_replay(self.name, facts, settings, said)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return suffix_switch(engine, setting)
