"""Says of each claim whether it is a gain, a loss, or cannot be told, by intervals that hold for all claims together."""

from collections.abc import Sequence

from netgain.deciding.experiment.observation import Observation, pair
from netgain.deciding.experiment.statistics import CONFIDENCE, Effect, mean_effect, median_effect
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.kv.asking import Seen
from netgain.deciding.kv.conduct import Trial
from netgain.deciding.kv.figures import role_figures
from netgain.deciding.kv.outcome import Claim, Regret, RoleFigures, Step, Word
from netgain.deciding.kv.steps import CLAIMS, STEPS, Against, StepPlan
from netgain.deciding.report.figures import seconds, share, times
from netgain.measuring.client.record import ClientRecord
from netgain.wording import count

EACH = 1.0 - (1.0 - CONFIDENCE) / CLAIMS  # Bonferroni's: intervals can be read as they stand
WARM_SHARE = 0.5  # of the tokens have to come from the tier for a step to be called warm
ON_DEVICE = 0.02  # of the tokens may have been on the device all the same


def judge(trial: Trial, seed: int) -> tuple[Step, ...]:
    """All steps."""
    return tuple(_step(plan, trial, seed) for plan in STEPS)


def _step(plan: StepPlan, trial: Trial, seed: int) -> Step:
    seen = [one for one in trial.seen if one.step == plan.name]
    windows = trial.windows.get(plan.name, {})
    roles = tuple(
        role_figures(role, [one for one in seen if one.role == role.name], windows.get(role.server, ()))
        for role in plan.roles
    )
    observations = _observations(seen)
    by_name = {role.name: role for role in roles}
    compared, differing = _identity(seen)
    return Step(
        name=plan.name,
        title=plan.title,
        does=plan.does,
        roles=roles,
        claims=tuple(claim(against, observations, by_name, seed) for against in plan.claims),
        regret=regret(plan, observations, by_name, seed),
        compared=compared,
        differing=differing,
        notes=tuple(_notes(plan, by_name)),
    )


def claim(against: Against, observations: Sequence[Observation], roles: dict[str, RoleFigures], seed: int) -> Claim:
    """One comparison of times to the first token, over the same prompts."""
    first = pair(observations, _ttft, against.baseline, against.candidate)
    mean = mean_effect(first, seed, EACH)
    word = word_of(mean)
    before, after = roles[against.baseline].ttft_mean_s, roles[against.candidate].ttft_mean_s
    return Claim(
        baseline=against.baseline,
        candidate=against.candidate,
        word=word,
        says=f"{against.says}: {_sentence(word, mean)} (mean {seconds(before)} and {seconds(after)}).",
        mean=mean,
        median=median_effect(first, seed, EACH),
        e2e=mean_effect(pair(observations, _e2e, against.baseline, against.candidate), seed, EACH),
    )


def word_of(effect: Effect | None) -> Word:
    """A gain or a loss is what lies beyond "no difference" with its whole interval."""
    if effect is None or effect.low is None or effect.high is None:
        return "cannot tell"
    return "gain" if effect.low > 1.0 else "loss" if effect.high < 1.0 else "cannot tell"


def _sentence(word: Word, effect: Effect | None) -> str:
    if effect is None:
        return "cannot tell, since no prompt was answered by both"
    if effect.low is None or effect.high is None:
        return f"cannot tell, since {count(effect.pairs, 'prompt')} of one repeat gave no interval around {times(effect.ratio)}"
    if word == "cannot tell":
        return (
            f"cannot tell; the first token came between {_slower(effect.low)} and {_slower(effect.high)}, "
            f"measured {_slower(effect.ratio)}"
        )
    small = abs(effect.ratio - 1.0) < MINIMUM_EFFECT
    interval = f"{times(effect.low)} to {times(effect.high)}"
    if word == "gain":
        told = f"a gain, the first token came {times(effect.ratio)} as soon ({interval})"
    else:
        told = f"a loss, the first token took {share(1.0 / effect.ratio - 1.0)} longer ({_longer(effect)})"
    return f"{told}, which is too little to matter" if small else told


def _longer(effect: Effect) -> str:
    assert effect.low is not None
    assert effect.high is not None
    return f"{share(1.0 / effect.high - 1.0)} to {share(1.0 / effect.low - 1.0)}"


def _slower(ratio: float) -> str:
    """A ratio of times in words."""
    if ratio < 0.5:
        return f"{1.0 / ratio:.1f}x as late"
    if ratio > 2.0:
        return f"{ratio:.1f}x as soon"
    return f"{share(1.0 / ratio - 1.0)} later" if ratio < 1.0 else f"{share(1.0 - 1.0 / ratio)} sooner"


def regret(
    plan: StepPlan, observations: Sequence[Observation], roles: dict[str, RoleFigures], seed: int
) -> Regret | None:
    """None where the step has no choices, or a side without a request that was answered."""
    if plan.policy is None:
        return None
    policy = roles[plan.policy].ttft_mean_s
    means = {name: mean for name in plan.choices if (mean := roles[name].ttft_mean_s) is not None}
    if policy is None or len(means) < len(plan.choices):
        return None
    best = min(means, key=means.__getitem__)
    effect = mean_effect(pair(observations, _ttft, best, plan.policy), seed, EACH)
    if effect is None:
        return None
    low, high = (None if end is None else 1.0 / end - 1.0 for end in (effect.high, effect.low))
    value = 1.0 / effect.ratio - 1.0
    interval = "no interval" if low is None or high is None else f"{share(low)} to {share(high)}"
    return Regret(
        best=best,
        regret=value,
        low=low,
        high=high,
        says=(
            f"The better choice was {roles[best].title} ({seconds(means[best])}); the policy took {seconds(policy)}, "
            f"a regret of {share(value)} ({interval})."
        ),
    )


def _observations(seen: Sequence[Seen]) -> list[Observation]:
    return [
        Observation(arm=one.role, start=one.repeat, group=one.group, block=one.group, record=one.record) for one in seen
    ]


def _ttft(record: ClientRecord) -> float | None:
    return record.ttft_s


def _e2e(record: ClientRecord) -> float | None:
    return record.e2e_s


def _identity(seen: Sequence[Seen]) -> tuple[int, int]:
    """Answers to a prompt beyond its first, and those of them that are other tokens."""
    outputs: dict[int, list[tuple[int, ...]]] = {}
    for one in seen:
        if one.record.ok and one.record.server is not None and one.record.server.output_ids is not None:
            outputs.setdefault(one.group, []).append(one.record.server.output_ids)
    compared = sum(len(answers) - 1 for answers in outputs.values())
    differing = sum(answer != answers[0] for answers in outputs.values() for answer in answers[1:])
    return compared, differing


def _notes(plan: StepPlan, roles: dict[str, RoleFigures]) -> list[str]:
    """Where a step was not what its title says."""
    found = []
    for role in roles.values():
        hits = role.hits
        on_device = hits.found_tokens - hits.loaded_tokens
        if plan.name != "mixed" and hits.prompt_tokens and on_device > ON_DEVICE * hits.prompt_tokens:
            found.append(
                f"{role.title}: {share(on_device / hits.prompt_tokens)} of the tokens were still on the device"
            )
        from_tier = plan.warm_from is not None and role.server in (plan.warm_from, "load")
        rate, choice = hits.token_rate_beyond, role.decisions
        if from_tier and rate is not None and choice is not None and rate < WARM_SHARE:
            chosen = f"; the policy computed {choice.recomputes} of {role.requests}" if choice.recomputes else ""
            found.append(f"{role.title}: only {share(rate)} of the tokens came from the tier{chosen}")
        if role.failed:
            found.append(f"{role.title}: {role.failed} of {count(role.requests, 'request')} failed")
    return found
