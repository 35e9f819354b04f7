"""Conditions under which the measurement means anything, read off the blocks and records of the experiment itself."""

from collections import defaultdict
from collections.abc import Sequence

from netgain.deciding.experiment.agreement import check_counts
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, Observation
from netgain.deciding.experiment.verdict import Check
from netgain.measuring.client.record import ErrorKind
from netgain.wording import count

IDLE_CPU_LIMIT = 0.02  # cores
BASELINE_LIMIT = 0.25  # of its requests
CACHE_LIMIT = 0.01  # of prompt tokens
CLIENT_LIMIT = 0.25  # of blocks: in one of a second or two, a single late wake-up is the p99
FOREIGN_CPU_NOTICE = 0.10  # cores


def check_trial(
    trial: Trial, same_cache: bool = True, reuses: bool = False, went_on: bool = False
) -> tuple[Check, ...]:
    """All validity checks. One with `ok` False voids the run; None means that it could not be checked.

    `same_cache` False: the arms' caches may work differently, as those of two engines do, so that only the repeats of an arm
    must find the same. `reuses`: what an arm finds is the effect under test and depends on what was stored by then, so it is
    told only. `went_on`: the servers are others' and went on running where the run had ended.
    """
    return (
        _idle(trial.blocks),
        _client(trial),
        *check_baseline(trial.observations),
        _told_cache(trial.observations) if reuses else _cache(trial.observations, same_cache),
        _foreign(trial.blocks),
        *((check_counts(trial.counted),) if trial.counted else ()),
        *_resumed(trial, went_on),
    )


def _idle(blocks: Sequence[Block]) -> Check:
    spent: dict[str, float] = defaultdict(float)
    waited: dict[str, float] = defaultdict(float)
    for block in blocks:
        for arm, share in block.idle_cpu.items():
            spent[arm] += share * block.seconds
            waited[arm] += block.seconds
    shares = {arm: spent[arm] / waited[arm] for arm in spent if waited[arm] > 0.0}
    worst = max(shares.values(), default=None)
    return Check(
        name="idle arm",
        ok=None if worst is None else worst <= IDLE_CPU_LIMIT,
        value=worst,
        limit=IDLE_CPU_LIMIT,
        says=(
            "the CPU time of the arm without load could not be seen"
            if worst is None
            else f"the arm without load used {worst:.2%} of a core (limit {IDLE_CPU_LIMIT:.0%})"
        ),
    )


def _client(trial: Trial) -> Check:
    """Void when requests failed in the client itself, or when too many blocks went over the client's own budget.

    A single block is short: its p99 is one moment, which the median over prompts and the noise floor already absorb.
    """
    own = [seen for seen in trial.observations if seen.record.error_kind is ErrorKind.CLIENT]
    over = [block.client_void for block in trial.blocks if block.client_void is not None]
    share = len(over) / len(trial.blocks) if trial.blocks else None
    late = max((block.lateness_p99_s for block in trial.blocks if block.lateness_p99_s is not None), default=None)
    told = f"lateness p99 of a block at most {'unknown' if late is None else f'{late * 1e3:.2f} ms'}"
    if own:
        told = f"{count(len(own), 'request')} failed in the client itself: {own[0].record.error}"
    elif over:
        told = f"{len(over)} of {len(trial.blocks)} blocks went over the load generator's budget ({over[0]})"
    return Check(
        name="client",
        ok=None if share is None else not own and share <= CLIENT_LIMIT,
        value=share,
        limit=CLIENT_LIMIT,
        says=told,
    )


def check_baseline(observations: Sequence[Observation]) -> tuple[Check, ...]:
    """A baseline that hardly answers (it was killed, it hangs) is none: whatever is beside it looks infinitely fast."""
    own = [seen.record for seen in observations if seen.arm == BASELINE]
    failed = [record for record in own if not record.ok]
    share = len(failed) / len(own) if own else 0.0
    if share <= BASELINE_LIMIT:
        return ()
    return (
        Check(
            name="baseline",
            ok=False,
            value=share,
            limit=BASELINE_LIMIT,
            says=f"{len(failed)} of {count(len(own), 'request')} to the baseline failed, so there is nothing to compare with; "
            f"the first: {failed[0].error}",
        ),
    )


def _cache(observations: Sequence[Observation], same_cache: bool) -> Check:
    """Every request of a prompt, in every block (and in either arm), must have found the same number of cached tokens. That they
    are equal does not tell that caches were cold (see `arms/cold.py`)."""
    found: dict[tuple[str, int, str], list[int]] = defaultdict(list)
    prompt_tokens: dict[tuple[str, int, str], int] = {}
    for seen in observations:
        cached, length = _cached(seen)
        if seen.record.ok and cached is not None and length:
            key = ("" if same_cache else seen.arm, *seen.key)
            found[key].append(cached)
            prompt_tokens[key] = length
    total = sum(prompt_tokens.values())
    if not total:
        return Check(
            name="cache state", ok=None, value=None, limit=CACHE_LIMIT, says="no request told its cached tokens"
        )
    apart = sum(max(values) - min(values) for values in found.values()) / total
    mean = sum(sum(values) / len(values) for values in found.values()) / total
    told = f"{mean:.1%} of prompt tokens were found in a prefix cache"
    if all(len(values) < 2 for values in found.values()):
        says = f"{told}; no prompt was answered twice, so nothing can be compared"
        return Check(name="cache state", ok=None, value=None, limit=CACHE_LIMIT, says=says)
    return Check(
        name="cache state",
        ok=apart <= CACHE_LIMIT,
        value=apart,
        limit=CACHE_LIMIT,
        says=(
            f"{told}, and the {'arms and repeats' if same_cache else 'repeats of an arm'} differ by {apart:.2%} of prompt tokens "
            f"(limit {CACHE_LIMIT:.0%})"
        ),
    )


def _told_cache(observations: Sequence[Observation]) -> Check:
    """The share of prompt tokens that each arm found computed."""
    shares: list[str] = []
    for arm in dict.fromkeys(seen.arm for seen in observations):
        pairs = [_cached(seen) for seen in observations if seen.arm == arm and seen.record.ok]
        known = [(cached, length) for cached, length in pairs if cached is not None and length]
        total = sum(length for _, length in known)
        shares.append(
            f"{sum(cached for cached, _ in known) / total:.1%} in the {arm}" if total else f"unknown in the {arm}"
        )
    return Check(
        name="cache state", ok=None, value=None, limit=None, says=f"prompt tokens found computed: {', '.join(shares)}"
    )


def _cached(seen: Observation) -> tuple[int | None, int | None]:
    """Cached and all tokens of a request's prompt, by the server's record where there is one."""
    told = seen.record.server or seen.record
    return told.cached_tokens, told.prompt_tokens


def _foreign(blocks: Sequence[Block]) -> Check:
    """Other work on the machine does not void the run, since it hits both arms and the noise floor; it is said."""
    known = [(block.foreign_cpu, block.seconds) for block in blocks if block.foreign_cpu is not None]
    seconds = sum(length for _, length in known)
    share = sum(cores * length for cores, length in known) / seconds if seconds > 0.0 else None
    quiet = share is None or share <= FOREIGN_CPU_NOTICE
    return Check(
        name="other work on the machine",
        ok=True if share is not None and quiet else None,
        value=share,
        limit=FOREIGN_CPU_NOTICE,
        says=(
            "could not be seen"
            if share is None
            else f"other processes used {share:.2f} cores during the blocks"
            + ("" if quiet else ": repeat on a quiet machine for narrower intervals")
        ),
    )


def _resumed(trial: Trial, went_on: bool) -> tuple[Check, ...]:
    """A run that went on after it had ended measured some starts with two processes per arm: said, since a start's own bias
    changed within it."""
    if not trial.resumed_at:
        return ()
    within = [
        at
        for at in trial.resumed_at
        if 0 < at < len(trial.blocks) and trial.blocks[at - 1].start == trial.blocks[at].start
    ]
    told = f"the run went on after it had ended, {count(len(trial.resumed_at), 'time')}"
    if went_on:
        within, told = [], f"{told}, with the servers that it had begun with"
    if within:
        starts = sorted({trial.blocks[at].start for at in within})
        told += f"; start {', '.join(map(str, starts))} of the servers holds blocks of several processes per arm"
    return (
        Check(name="resumed", ok=None if within else True, value=float(len(trial.resumed_at)), limit=None, says=told),
    )
