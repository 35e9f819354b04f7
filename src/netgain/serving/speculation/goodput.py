"""As many drafts as make the step loop commit the most tokens per second: expected acceptance over measured step cost.

Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (2024), with survival per request
and position, and costs as measured on this machine. No draft is a normal answer, and costs nothing but a rare look.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from netgain.cost.step_cost import StepCost
from netgain.serving.engine.finish import drafts_kept
from netgain.serving.engine.protocols import Ask, Draft, Load
from netgain.serving.engine.request import Request
from netgain.serving.speculation.survival import Survival

# Steps between looks at a request whose drafts do not pay: drafts made of text are compared with what comes, unverified.
LOOK_EVERY = 8
EMPTY_ENOUGH = 16  # steps without a match in a row, after which a request is asked only so often, too
TRIES, FIRST_TRIES_S = (
    0.01,
    0.15,
)  # computed drafts that do not pay are tried with this share of the time, and some at first
TRIED = 2  # drafts of such a try
# What drafts promise counts for so much, since of uncertain promises the too good ones are taken: less for a request without
# drafts than for one that has them, so that decisions last.
TAKEN_UP, KEPT = 0.85, 0.95
FADE, FADE_ALL = 0.98, 0.998
CONTEXT_STEP = 256  # tokens; costs are looked up once per so much context
ADAPT = 0.05  # weight of a step's time in the running figures
TRUST = (1 / 3, 3.0)  # a step further off the curve than this was disturbed by something else
DEARER = (0.8, 1.5)  # bounds of what steps with drafts take beyond the curve, compared with those without
FALLS, RISES = 0.5, 0.02  # weights in the time per draft: a long one has probably read a prompt first


class GoodputControl:
    """`cost` gives the step-cost curve in use, None while there is none: nothing can be weighed then, and nothing is drafted.

    With `computed` drafts come from a model: how many are made is decided before, and the time that they take is weighed.
    Else drafts are made first, and how many of them are verified is decided when they are seen.
    """

    def __init__(self, k: int, cost: Callable[[], StepCost | None], *, computed: bool) -> None:
        self._k = k
        self._cost = cost
        self._computed = computed
        self._all = Survival(k, FADE_ALL)
        self._known: dict[str, _Known] = {}
        self._table: dict[tuple[int, int], _Prices | None] = {}
        self._table_of: StepCost | None = None
        self._plain = 1.0  # time of steps without drafts over what the curve says, a running mean
        self._wide: float | None = None  # of those with drafts; None before there was one
        self._draft_s: float | None = None  # seconds per draft of the longest chain
        self._credit_s = FIRST_TRIES_S  # to be spent on tries

    def limits(self, asks: Sequence[Ask], load: Load) -> list[int]:
        if self._prices(load) is None:
            return [0] * len(asks)
        if self._computed:
            wanted = self._best(asks, [ask.limit for ask in asks], load)
            for ask, count in zip(asks, wanted, strict=True):
                self._of(ask.request).on = count > 0
            return wanted if any(wanted) else self._try(asks, load)
        return [ask.limit if self._looks(ask) else 0 for ask in asks]

    def keep(self, asks: Sequence[Ask], drafts: Sequence[Draft], load: Load) -> list[int]:
        lengths = [len(draft.tokens) for draft in drafts]
        if self._computed:
            return lengths
        kept = self._best(asks, lengths, load) if any(lengths) else lengths
        for ask, draft, count in zip(asks, drafts, kept, strict=True):
            known = self._of(ask.request)
            known.empty = 0 if draft.tokens else known.empty + 1
            if draft.tokens:
                known.on = count > 0
                known.unverified = None if count else (len(ask.tokens), draft.tokens)
            elif known.empty >= EMPTY_ENOUGH:
                known.on = False
        return kept

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        self._of(request).survival.add(drafted, accepted)
        self._all.add(drafted, accepted)

    def turned(self, load: Load, drafts: int, depth: int, seconds: float, draft_s: float) -> None:
        """A step of decodes took `seconds`, `draft_s` of them for making drafts, at most `depth` for a request."""
        prices = self._prices(load)
        if prices is None:
            return
        if self._computed and depth:
            each_s, before_s = draft_s / depth, self._draft_s
            weight = FALLS if before_s is not None and each_s < before_s else RISES
            self._draft_s = each_s if before_s is None else before_s + weight * (each_s - before_s)
            seconds -= draft_s
        self._credit_s = min(FIRST_TRIES_S, self._credit_s + TRIES * seconds)
        expected_s = prices.of(drafts)
        if expected_s == math.inf:
            return
        ratio = min(max(seconds / expected_s, TRUST[0]), TRUST[1])
        if not drafts:
            self._plain += ADAPT * (ratio - self._plain)
        elif self._wide is None:
            self._wide = self._plain
        else:
            self._wide += ADAPT * (ratio - self._wide)

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        known = self._known.pop(request.id, None)
        if known is not None:
            self._resolve(known, tokens)

    def _of(self, request: Request) -> "_Known":
        known = self._known.get(request.id)
        if known is None:
            known = self._known[request.id] = _Known(self._k)
        return known

    def _looks(self, ask: Ask) -> bool:
        """Whether to ask for drafts now: always while they pay, else rarely, to see whether they would."""
        known = self._of(ask.request)
        if known.on:
            return True
        known.rested += 1
        if known.rested < LOOK_EVERY:
            return False
        known.rested = 0
        self._resolve(known, ask.tokens)
        return True

    def _try(self, asks: Sequence[Ask], load: Load) -> list[int]:
        """A few drafts for one request now and then, so that it shows when they begin to pay."""
        tries = [0] * len(asks)
        prices = self._prices(load)
        if prices is not None and asks:
            longest = max(range(len(asks)), key=lambda index: asks[index].limit)
            count = min(TRIED, asks[longest].limit)
            price_s = count * self._each_s(prices) + prices.of(count) - prices.of(0)
            if price_s <= self._credit_s:
                self._credit_s -= price_s
                tries[longest] = count
        return tries

    def _resolve(self, known: "_Known", tokens: Sequence[int]) -> None:
        """What became of drafts that were not verified says as much as a verification, at no cost."""
        if known.unverified is None:
            return
        at, drafts = known.unverified
        known.unverified = None
        came = tokens[at : at + len(drafts)]
        judged = drafts[: len(came)]
        if judged:
            accepted = drafts_kept(judged, came)
            known.survival.add(len(judged), accepted)
            self._all.add(len(judged), accepted)

    def _best(self, asks: Sequence[Ask], most: Sequence[int], load: Load) -> list[int]:
        """How many drafts of each request to verify, at most `most`, so that expected tokens per second are the most."""
        prices = self._prices(load)
        if prices is None:
            return [0] * len(asks)
        expected = self._all.expected()
        slots: list[tuple[float, int, int]] = []
        for index, (ask, count) in enumerate(zip(asks, most, strict=True)):
            known = self._of(ask.request)
            survives = KEPT if known.on else TAKEN_UP
            for position, chance in enumerate(known.survival.chances(expected)[:count]):
                survives *= chance
                slots.append((-survives, position, index))
        slots.sort()
        dearer = 1.0 if self._wide is None else min(max(self._wide / self._plain, DEARER[0]), DEARER[1])
        best, taken, depth = load.batch / prices.of(0), 0, self._k
        # drafts that a model makes cost time by the longest chain, so every length is weighed by itself
        for cap in range(1, self._k + 1) if self._computed else (self._k,):
            made_s = 0.0 if not self._computed else cap * self._each_s(prices)
            gained, count = float(load.batch), 0
            for negative, position, _ in slots:
                if position >= cap:
                    continue
                gained -= negative
                count += 1
                rate = gained / (prices.of(count) * dearer + made_s)
                if rate > best:
                    best, taken, depth = rate, count, cap
        chosen = [0] * len(asks)
        for _, _, index in [slot for slot in slots if slot[1] < depth][:taken]:
            chosen[index] += 1
        return chosen

    def _each_s(self, prices: "_Prices") -> float:
        return 0.5 * prices.of(0) if self._draft_s is None else self._draft_s

    def _prices(self, load: Load) -> "_Prices | None":
        """What steps of this load cost; None where that was not measured."""
        cost = self._cost()
        if cost is None:
            return None
        if cost is not self._table_of:
            self._table, self._table_of = {}, cost
        place = (load.batch, load.context // CONTEXT_STEP)
        if place not in self._table:
            self._table[place] = _measured(cost, load.batch, place[1] * CONTEXT_STEP, self._k)
        return self._table[place]


class _Known:
    """What is known of one request."""

    __slots__ = ("empty", "on", "rested", "survival", "unverified")

    def __init__(self, k: int) -> None:
        self.survival = Survival(k, FADE)
        self.on = False
        self.rested = LOOK_EVERY - 1  # steps since drafts were last asked for, so that the first step asks
        self.empty = 0  # asked in vain since the last draft
        self.unverified: tuple[int, tuple[int, ...]] | None = None  # where drafts stood that nobody verified


class _Prices(NamedTuple):
    """Seconds of a step of one batch size by tokens per request, 1 first; in proportion between whole numbers."""

    batch: int
    seconds: tuple[float, ...]

    def of(self, drafts: int) -> float:
        """With so many drafts in all; infinite beyond what was measured."""
        whole, rest = divmod(drafts, self.batch)
        if whole + (rest > 0) >= len(self.seconds):
            return math.inf
        low = self.seconds[whole]
        return low if not rest else low + rest / self.batch * (self.seconds[whole + 1] - low)


def _measured(cost: StepCost, batch: int, context: int, k: int) -> _Prices | None:
    seconds = []
    for tokens in range(1, k + 2):
        estimate = cost.verify(batch, tokens, context)
        if {"batch", "tokens"} & set(estimate.outside):
            break  # a cost is never extrapolated
        seconds.append(estimate.seconds)
    return _Prices(batch, tuple(seconds)) if len(seconds) > 1 else None
