"""Adopt, reject or inconclusive: the decision with its reasons, from effects, guards, identity and validity checks."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from netgain.deciding.experiment.guards import Guard
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.power import Needed, Spent, detectable_effect, needed_to_decide, next_steps
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect
from netgain.wording import count

Decision = Literal["adopt", "reject", "inconclusive"]
Finding = Literal["faster", "slower", "same", "unclear"]
_BEYOND = 12.0  # a logarithm of a ratio of times; what was measured differs by less
MINIMUM_EFFECT = 0.03


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """A condition under which the measurement means anything; one that fails voids the run. `ok` None = not known."""

    name: str
    ok: bool | None
    value: float | None
    limit: float | None
    says: str


class Looped(msgspec.Struct, frozen=True, kw_only=True):
    """How many prompts were answered with text that repeats itself, and the primary effect without those prompts."""

    prompts: int
    looped: tuple[str, ...]
    without: Effect | None

    @property
    def share(self) -> float:
        return len(self.looped) / self.prompts if self.prompts else 0.0


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one candidate. Ratios are baseline / candidate times: above 1 the candidate is faster.

    `finding` says what is known of the speed alone: "same" means that every effect as large as the minimum is excluded.
    `scope` says what the interval covers. `noise_floor`, `minimum_effect` and `detectable` are relative (0.03 = 3 %):
    what comparing the baseline with itself shows, the least gain worth adopting, and the least true gain that four
    repeats in five of this design would adopt. `threshold` is the ratio which the measured effect must reach for "adopt",
    its interval beginning above 1. `void` means the run proves nothing and says why in `reasons`. `confidence` is that of
    the interval, above 95 % when several candidates were tried. `needed` estimates what would decide an inconclusive run.
    """

    decision: Decision
    finding: Finding
    void: bool
    headline: str
    reasons: tuple[str, ...]
    scope: str
    primary: Effect | None
    confidence: float
    noise_floor: float | None
    minimum_effect: float
    threshold: float
    detectable: float | None
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    identity: Identity | None
    looped: Looped
    needed: Needed | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the decision rests on. `noise_floor` is a log ratio; `promises_identity`: equal tokens are required.
    `doubts`, `losses`, `paired`, `scope` and `advice` as in `Terms`."""

    primary: Effect | None
    mean: Effect | None
    noise_floor: float | None
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    identity: Identity
    promises_identity: bool
    looped: Looped
    control: Effect | None = None
    spent: Spent = Spent(blocks=0, block_s=None)
    confidence: float = CONFIDENCE
    doubts: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    paired: bool = True
    scope: str | None = None
    advice: str | None = None


def judge(evidence: Evidence, minimum_effect: float = MINIMUM_EFFECT) -> Verdict:
    """Decide. Order: is the run valid, is the candidate correct, does it hurt anything, and only then is it faster.

    Adopting and rejecting for speed are held to the same standard: an interval that excludes "no change", and a measured
    effect at least as large as the minimum. An equal candidate meets either with at most half of 1 - confidence.
    """
    margin = math.log1p(minimum_effect)
    decision, void, reasons = _decide(evidence, margin)
    needed = None
    if decision == "inconclusive" and not void:
        needed = needed_to_decide(evidence.primary, minimum_effect, evidence.spent, evidence.confidence)
        found = finding(evidence.primary, margin)
        untold = any(guard.candidate is None for guard in evidence.guards)
        if found == "faster" and untold:
            needed = None  # more of the same would not tell it either
        elif found != "same" and not (
            found == "faster" and evidence.doubts
        ):  # a doubt says itself what would remove it
            full_form = evidence.control is not None
            looping = _only_loops(evidence, margin)
            reasons += next_steps(
                evidence.primary, needed, full_form=full_form, looping=looping, advice=evidence.advice
            )
    return Verdict(
        decision=decision,
        finding=finding(evidence.primary, margin),
        void=void,
        headline=_headline(void, evidence, reasons, margin),
        reasons=tuple(reasons),
        scope=evidence.scope or _scope(evidence.primary),
        primary=evidence.primary,
        confidence=evidence.confidence,
        noise_floor=None if evidence.noise_floor is None else math.expm1(evidence.noise_floor),
        minimum_effect=minimum_effect,
        threshold=1.0 + minimum_effect,
        detectable=detectable_effect(evidence.primary, minimum_effect, evidence.confidence),
        guards=evidence.guards,
        checks=evidence.checks,
        identity=evidence.identity,
        looped=evidence.looped,
        needed=needed,
    )


def finding(effect: Effect | None, margin: float) -> Finding:
    """What an effect says of the speed; `margin` is the log ratio from which on a difference matters."""
    if effect is None or effect.interval is None or effect.units < FEWEST_UNITS:
        return "unclear"
    low, high = (math.log(end) for end in effect.interval)
    if -margin < low and high < margin:
        return "same"
    if low > 0.0 and math.log(effect.ratio) >= margin:
        return "faster"
    if high < 0.0 and math.log(effect.ratio) <= -margin:
        return "slower"
    return "unclear"


def _decide(evidence: Evidence, margin: float) -> tuple[Decision, bool, list[str]]:
    broken = [f"{check.name}: {check.says}" for check in evidence.checks if check.ok is False]
    if broken:
        return "inconclusive", True, broken
    if evidence.control is not None and finding(evidence.control, margin) in ("faster", "slower"):
        said = f"the baseline against itself as a third arm shows {percent(evidence.control.ratio)}: noise exceeds the design"
        return "inconclusive", True, [said]
    if evidence.identity.baseline_differs and evidence.promises_identity:
        names = listed(evidence.identity.baseline_differs)
        return "inconclusive", True, [f"the baseline gave different tokens for the same prompt and seed ({names})"]
    if evidence.identity.differing and evidence.promises_identity:
        differing, names = len(evidence.identity.differing), listed(evidence.identity.differing)
        return (
            "reject",
            False,
            [f"it promises identical tokens, and {differing} of {evidence.identity.compared} prompts differ ({names})"],
        )
    breached = [_guard_says(guard) for guard in evidence.guards if guard.state == "breached"]
    if breached or evidence.losses:
        return "reject", False, [*evidence.losses, *breached]
    return _weigh(evidence, margin)


def _weigh(evidence: Evidence, margin: float) -> tuple[Decision, bool, list[str]]:
    primary = evidence.primary
    if primary is None:
        return "inconclusive", True, ["no prompt was measured in both arms"]
    if evidence.promises_identity and not evidence.identity.compared:
        return "inconclusive", True, ["no prompt succeeded in both arms, so identical tokens could not be checked"]
    if primary.interval is None or primary.units < FEWEST_UNITS:
        few = f"{count(primary.units, 'group')} of prompts: too few to decide anything, {FEWEST_UNITS} are the least"
        return "inconclusive", False, [few]
    low, high = primary.interval
    interval, least = f"{percent(low)} to {percent(high)}", percent(math.exp(margin))
    match finding(primary, margin):
        case "faster":
            hesitations = _hesitations(evidence, margin)
            said = f"the whole interval ({interval}) lies above no change, and the measured gain above the minimum of {least}"
            return ("inconclusive", False, hesitations) if hesitations else ("adopt", False, [said])
        case "slower":
            return "reject", False, [f"it is slower: the whole interval ({interval}) lies below no change"]
        case "same":
            told = (
                f"no difference that matters: the whole interval ({interval}) lies within {least} either way, so more "
                "measuring would not change that; keep the baseline"
            )
            return "inconclusive", False, [told]
    if low > 1.0 or high < 1.0:
        what = "faster" if low > 1.0 else "slower"
        told = f"it is {what} ({interval}), but by less than the {least} that matters as far as is known"
    else:
        told = f"it may pay or not: the interval ({interval}) holds gains and losses"
    return "inconclusive", False, [told]


def _scope(primary: Effect | None) -> str:
    if primary is not None and primary.unit == "start":
        return f"across server starts ({primary.units} of each arm)"
    return "within these starts of the servers: another start may differ, which only more starts can show"


def _hesitations(evidence: Evidence, margin: float) -> list[str]:
    """Why a measured gain is not yet a reason to adopt."""
    found = [_guard_says(guard) for guard in evidence.guards if guard.state == "not shown"] + list(evidence.doubts)
    mean, primary = evidence.mean, evidence.primary
    lags = mean is not None and primary is not None and mean.high is not None and mean.high < primary.ratio
    if mean is not None and mean.ratio < 1.0 and lags:
        found.append(
            f"the median prompt gains, but the mean time does not ({percent(mean.ratio)}): a few prompts lose much"
        )
    return found + _loops(evidence.looped, margin)


def _loops(looped: Looped, margin: float) -> list[str]:
    if not looped.looped:
        return []
    if looped.without is None:
        told = f"{looped.share:.0%} of the prompts were answered with looping text; nothing is left without them"
        return [told] if looped.share > 0.5 else []
    if math.log(looped.without.ratio) >= margin:
        return []
    share = f"{len(looped.looped)} of {looped.prompts} prompts"
    return [f"the gain rests on looping text ({share}): {percent(looped.without.ratio)} without it"]


def _only_loops(evidence: Evidence, margin: float) -> bool:
    """Whether the gain is shown, and nothing but looping text speaks against it."""
    if finding(evidence.primary, margin) != "faster":
        return False
    loops = _loops(evidence.looped, margin)
    return bool(loops) and _hesitations(evidence, margin) == loops


def _guard_says(guard: Guard) -> str:
    if guard.name == "failed share":
        return f"more requests fail: {_share(guard.candidate)} against {_share(guard.baseline)}"
    if guard.candidate is None:
        return (
            f"guard {guard.name}: the candidate's is not known, as none of its answers told it (did they hold tokens?)"
        )
    shown = "is above" if guard.state == "breached" else "may be above"
    return (
        f"guard {guard.name}: {_ms(guard.candidate)} {shown} the limit of {_ms(guard.limit)} ({guard.basis}; "
        f"baseline {_ms(guard.baseline)})"
    )


def _headline(void: bool, evidence: Evidence, reasons: Sequence[str], margin: float) -> str:
    primary = evidence.primary
    if void:
        return f"The run proves nothing: {reasons[0]}"
    if primary is None:
        return reasons[0]
    if abs(math.log(primary.ratio)) > _BEYOND:  # failures count as such a time, which is none to be told
        return f"Most requests fail on one side, so there are no times to compare: {reasons[0]}"
    if primary.interval is None:
        return f"End-to-end time {change(primary.ratio)}, without an interval: {reasons[0]}"
    low, high = primary.interval
    what = "median speedup of paired prompts" if evidence.paired else "ratio of the medians, prompts not paired:"
    measured = f"{what} {primary.ratio:.2f}x, {evidence.confidence * 100:.4g} % interval {low:.2f}x to {high:.2f}x"
    if finding(primary, margin) == "same":
        return f"End-to-end time per request does not change by as much as matters ({measured})"
    if low <= 1.0 <= high:
        return f"No change of end-to-end time per request is shown ({measured})"
    return f"End-to-end time per request {change(primary.ratio)} ({measured})"


def change(ratio: float) -> str:
    """A speedup as a change of time, in words."""
    saved = 1.0 - 1.0 / ratio
    return f"falls by {saved:.1%}" if saved >= 0.0 else f"rises by {-saved:.1%}"


def percent(ratio: float) -> str:
    """A speedup as a signed percentage."""
    return f"{ratio - 1.0:+.1%}"


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most} more" if len(every) > most else "")


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _ms(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value * 1e3:.1f} ms" if math.isfinite(value) else "infinite (failures)"
