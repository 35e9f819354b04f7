"""Adopt, reject or inconclusive: the decision with its reasons, from effects, guards, identity and validity checks."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from netgain.deciding.experiment.guards import Guard
from netgain.deciding.experiment.identity import Identity
from netgain.deciding.experiment.next_steps import groups_needed, next_steps
from netgain.deciding.experiment.statistics import ALPHA, Effect
from netgain.wording import count

Decision = Literal["adopt", "reject", "inconclusive"]
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


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """When to go back: `metric` beyond `threshold` over `window` requests."""

    metric: str
    threshold_s: float
    window_requests: int
    says: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one candidate. Ratios are baseline / candidate times: above 1 the candidate is faster.

    `noise_floor` and `minimum_effect` are relative (0.03 = 3 %); `threshold` is the ratio which the whole interval must
    exceed for "adopt". `void` means the run proves nothing and says why in `reasons`. `groups_needed` estimates how many
    groups of prompts would have decided an inconclusive run.
    """

    decision: Decision
    void: bool
    headline: str
    reasons: tuple[str, ...]
    primary: Effect | None
    noise_floor: float | None
    minimum_effect: float
    threshold: float
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    identity: Identity | None
    looped: Looped
    groups_needed: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the decision rests on. `noise_floor` is a log ratio; `promises_identity`: equal tokens are required."""

    primary: Effect | None
    mean: Effect | None
    noise_floor: float | None
    guards: tuple[Guard, ...]
    checks: tuple[Check, ...]
    identity: Identity
    promises_identity: bool
    looped: Looped
    control: Effect | None = None


def judge(evidence: Evidence, minimum_effect: float = MINIMUM_EFFECT) -> Verdict:
    """Decide. Order: is the run valid, is the candidate correct, does it hurt anything, and only then is it faster."""
    threshold = max(math.log1p(minimum_effect), evidence.noise_floor or 0.0)
    decision, void, reasons = _decide(evidence, minimum_effect, threshold)
    needed = None
    if decision == "inconclusive" and not void:
        needed = groups_needed(evidence.primary, threshold)
        full_form = evidence.control is not None
        reasons += next_steps(evidence.primary, needed, full_form=full_form, looping=_only_loops(evidence, threshold))
    return Verdict(
        decision=decision,
        void=void,
        headline=_headline(decision, void, evidence.primary, reasons),
        reasons=tuple(reasons),
        primary=evidence.primary,
        noise_floor=None if evidence.noise_floor is None else math.expm1(evidence.noise_floor),
        minimum_effect=minimum_effect,
        threshold=math.exp(threshold),
        guards=evidence.guards,
        checks=evidence.checks,
        identity=evidence.identity,
        looped=evidence.looped,
        groups_needed=needed,
    )


def _decide(evidence: Evidence, minimum_effect: float, threshold: float) -> tuple[Decision, bool, list[str]]:
    broken = [f"{check.name}: {check.says}" for check in evidence.checks if check.ok is False]
    if broken:
        return "inconclusive", True, broken
    if evidence.control is not None and _beyond(evidence.control, threshold) is not None:
        said = f"the baseline against a second start of itself shows {percent(evidence.control.ratio)}: noise exceeds the design"
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
    if breached:
        return "reject", False, breached
    return _weigh(evidence, minimum_effect, threshold)


def _weigh(evidence: Evidence, minimum_effect: float, threshold: float) -> tuple[Decision, bool, list[str]]:
    primary = evidence.primary
    if primary is None:
        return "inconclusive", True, ["no prompt was measured in both arms"]
    if evidence.promises_identity and not evidence.identity.compared:
        return "inconclusive", True, ["no prompt succeeded in both arms, so identical tokens could not be checked"]
    if primary.low is None or primary.high is None or evidence.noise_floor is None:
        return "inconclusive", False, [f"{count(primary.groups, 'group')} of prompts: too few for an interval"]
    interval = f"{percent(primary.low)} to {percent(primary.high)}"
    needed = f"{percent(math.exp(threshold))} ({_why(evidence, minimum_effect)})"
    if _beyond(primary, threshold) == "faster":
        hesitations = _hesitations(evidence, threshold)
        said = f"the whole interval ({interval}) lies above {needed}"
        return ("inconclusive", False, hesitations) if hesitations else ("adopt", False, [said])
    if math.log(primary.low) > threshold:
        return (
            "inconclusive",
            False,
            [
                f"the interval lies above {needed}, but {primary.groups} groups are too few for the exact test "
                f"(p = {primary.p_faster:.3f}, needed at most {ALPHA})"
            ],
        )
    margin = max(0.0, (evidence.noise_floor or 0.0) - math.log1p(minimum_effect))
    if math.log(primary.high) + margin < math.log1p(minimum_effect):
        what = "it is slower" if primary.high < 1.0 else "the gain is too small to be worth it"
        return "reject", False, [f"{what}: the whole interval ({interval}) lies below {percent(1.0 + minimum_effect)}"]
    if math.log(primary.high) > threshold:
        said = f"it may pay or not: the interval ({interval}) reaches from below to above {needed}"
    else:
        least = percent(1.0 + minimum_effect)
        said = f"the interval ({interval}) ends below {needed}, but a gain of {least} could hide in that noise"
    return "inconclusive", False, [said]


def _why(evidence: Evidence, minimum_effect: float) -> str:
    above = evidence.noise_floor is not None and evidence.noise_floor > math.log1p(minimum_effect)
    return "the noise floor" if above else "the minimum effect; the noise floor is below it"


def _beyond(effect: Effect, threshold: float) -> Literal["faster", "slower"] | None:
    """Whether interval and exact test agree that the effect exceeds the threshold, and in which direction."""
    if effect.low is None or effect.high is None:
        return None
    if math.log(effect.low) > threshold and effect.p_faster <= ALPHA:
        return "faster"
    if math.log(effect.high) < -threshold and effect.p_slower <= ALPHA:
        return "slower"
    return None


def _hesitations(evidence: Evidence, threshold: float) -> list[str]:
    """Why a measured gain is not yet a reason to adopt."""
    found = [_guard_says(guard) for guard in evidence.guards if guard.state == "not shown"]
    if evidence.mean is not None and evidence.mean.ratio < 1.0:
        found.append(
            f"the median prompt gains, but the mean time does not ({percent(evidence.mean.ratio)}): a few prompts lose much"
        )
    return found + _loops(evidence.looped, threshold)


def _loops(looped: Looped, threshold: float) -> list[str]:
    if not looped.looped:
        return []
    if looped.without is None:
        told = f"{looped.share:.0%} of the prompts were answered with looping text; nothing is left without them"
        return [told] if looped.share > 0.5 else []
    if math.log(looped.without.ratio) > threshold:
        return []
    share = f"{len(looped.looped)} of {looped.prompts} prompts"
    return [f"the gain rests on looping text ({share}): {percent(looped.without.ratio)} without it"]


def _only_loops(evidence: Evidence, threshold: float) -> bool:
    """Whether the gain is shown, and nothing but looping text speaks against it."""
    if evidence.primary is None or _beyond(evidence.primary, threshold) != "faster":
        return False
    loops = _loops(evidence.looped, threshold)
    return bool(loops) and _hesitations(evidence, threshold) == loops


def _guard_says(guard: Guard) -> str:
    if guard.name == "failed share":
        return f"more requests fail: {_share(guard.candidate)} against {_share(guard.baseline)}"
    shown = "is above" if guard.state == "breached" else "may be above"
    return (
        f"guard {guard.name}: {_ms(guard.candidate)} {shown} the limit of {_ms(guard.limit)} ({guard.basis}; "
        f"baseline {_ms(guard.baseline)})"
    )


def _headline(decision: Decision, void: bool, primary: Effect | None, reasons: Sequence[str]) -> str:
    if void:
        return f"The run proves nothing: {reasons[0]}"
    if primary is None:
        return reasons[0]
    if primary.low is None or primary.high is None:
        return f"End-to-end time {change(primary.ratio)}, without an interval: {reasons[0]}"
    measured = f"{primary.ratio:.2f}x, 95 % interval {primary.low:.2f}x to {primary.high:.2f}x"
    if primary.low <= 1.0 <= primary.high:
        return f"No change of end-to-end time per request is shown (median speedup of paired prompts {measured})"
    return f"End-to-end time per request {change(primary.ratio)} (median speedup of paired prompts {measured})"


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


def rollback_rule(
    baseline_tpot_s: float | None, effect: Effect | None, noise_floor: float | None, window: int
) -> Rollback | None:
    """Go back when the time per output token has returned to the baseline's, less the noise floor.

    None when nothing is known to go back to.
    """
    if baseline_tpot_s is None or effect is None or not math.isfinite(baseline_tpot_s):
        return None
    threshold = baseline_tpot_s / math.exp(noise_floor or 0.0)
    return Rollback(
        metric="median seconds per output token, as the client measures it",
        threshold_s=threshold,
        window_requests=window,
        says=(
            f"Go back when the median time per output token of {window} consecutive requests exceeds "
            f"{threshold * 1e3:.2f} ms: the baseline's {baseline_tpot_s * 1e3:.2f} ms less the noise floor, so no gain is left."
        ),
    )
