"""What an answer must be: the one that the idle server gave, or one of the refusals that were asked for."""

from collections.abc import Sequence

from benchmarks.soak.world import Outcome, Reference, World


def check(world: World, outcome: Outcome, reference: Reference, what: str, stop: str | None = None) -> None:
    """Count the tokens that differ from the reference's; an answer that was cut must be its beginning."""
    expected = reference.text if stop is None else reference.text.partition(stop)[0]
    world.tally.checked += 1
    if outcome.ids is not None:
        wrong = sum(a != b for a, b in zip(outcome.ids, reference.ids, strict=False))
        wrong += max(0, len(outcome.ids) - len(reference.ids))
    else:
        wrong = 0
    for at, text in outcome.texts.items():
        if not expected.startswith(text.removesuffix("�")):
            wrong += 1
            world.tally.fault(f"{what}: choice {at} is {text!r}, the reference {expected!r}")
    if wrong:
        world.tally.wrong += wrong
        world.tally.fault(f"{what}: {wrong} tokens differ from the reference")


def settle(world: World, outcome: Outcome, started_s: float, what: str, also: Sequence[str] = ()) -> bool:
    """File the outcome; True when it is a whole answer. Overload and a lost engine are answers, too, in their time."""
    tally = world.tally
    if outcome.status == 200 and outcome.complete and outcome.error is None:
        tally.outcomes["ok"] += 1
        return True
    if outcome.status == 429 and outcome.error in ("queue_full", *also):
        if not (outcome.retry_after or "").isdecimal():
            tally.fault(f"{what}: 429 without Retry-After")
        tally.outcomes["overloaded"] += 1
    elif outcome.error == "engine_unavailable" and world.engine_may_be_lost(started_s):
        tally.outcomes["engine lost"] += 1
    elif outcome.error in also:
        tally.outcomes[str(outcome.error)] += 1
    else:
        tally.fault(f"{what}: {outcome.status} {outcome.error} {outcome.message[:200]} complete={outcome.complete}")
    return False
