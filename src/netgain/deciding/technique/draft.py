"""Speculation with a second model, or with heads trained for the target: both predicted from drafts measured to survive."""

from collections.abc import Callable

from netgain.deciding.technique.draft_switches import heads_switch, model_switch
from netgain.deciding.technique.drafter import Drafter
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.technique.replayed import RELIEVES
from netgain.deciding.technique.survived import cannot_predict, predict_by_survival
from netgain.errors import UsageError

MUST_REPORT = (
    "tokens committed per step",
    "acceptance per draft position and per draft length",
    "verify and draft time",
    "time per output token",
    "output tokens per second",
    "memory of the draft's weights, and KV tokens that fit in both arms",
    "what the draft was trained on, and for which target",
)


class ModelSpeculation:
    """A smaller model of the same vocabulary drafts; token-identical under netgain's coupled verifier."""

    name = "draft"
    title = "speculation with a draft model"
    relieves = RELIEVES
    brings = (
        "a pass of the draft per drafted token, wider passes to verify them, the draft's weights and its KV of every token, the "
        "reading of prompts by both models, and work on drafts that are rejected"
    )
    kind: Kind = "token-identical"
    reuses = False
    must_report = MUST_REPORT

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return _cannot_judge(synthetic_text)

    def cannot_apply(self, facts: Facts) -> str | None:
        return _cannot_apply(facts, lambda drafter: drafter.is_model, "a head and not a model (technique heads)")

    def predict(self, facts: Facts) -> Prediction:
        return _predict(self.name, facts)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return model_switch(engine, setting)


class HeadSpeculation:
    """Heads or a layer over the target's own features draft (EAGLE, Medusa, MTP, DFlash, DSpark); token-identical under the
    coupled verifier."""

    name = "heads"
    title = "speculation with trained heads (EAGLE, Medusa, MTP)"
    relieves = RELIEVES
    brings = (
        "a small pass per drafted token, wider passes to verify them, features kept of every token, training for exactly these "
        "weights (and again when they change), and work on drafts that are rejected"
    )
    kind: Kind = "token-identical"
    reuses = False
    must_report = MUST_REPORT

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return _cannot_judge(synthetic_text)

    def cannot_apply(self, facts: Facts) -> str | None:
        return _cannot_apply(facts, lambda drafter: not drafter.is_model, "a model and not a head (technique draft)")

    def predict(self, facts: Facts) -> Prediction:
        return _predict(self.name, facts)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return heads_switch(engine, setting)


def _cannot_judge(synthetic_text: bool) -> str | None:
    if not synthetic_text:
        return None
    return (
        "it cannot be judged on synthetic text: how well a draft foresees the model depends on what the texts say, and this "
        "workload has only their lengths and shared beginnings (record with --with-text to judge it)"
    )


def _cannot_apply(facts: Facts, fits: Callable[[Drafter], bool], otherwise: str) -> str | None:
    if facts.drafter is None:
        return "no draft was named (--draft FOLDER); netgain draft train makes one for this model"
    if not fits(facts.drafter):
        return f"{facts.drafter.source} is {otherwise}"
    return _cannot_judge(facts.synthetic_text) or cannot_predict(facts, facts.drafter)


def _predict(name: str, facts: Facts) -> Prediction:
    """The best of all lengths whose survival and verification were measured."""
    if facts.drafter is None:
        raise UsageError("a draft that nobody named cannot be predicted; give --draft")
    held = facts.drafter.token_bytes
    room = (
        "what the draft takes of the KV cache is not known"
        if held is None
        else f"room in the KV cache that its {held:,} bytes per token take from other requests"
    )
    return predict_by_survival(name, facts, facts.drafter, (room,))
