"""As many drafts as make the step loop commit the most tokens per second: expected acceptance over measured step cost.

Liu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using Goodput" (2024), with survival per request
and position, and costs as measured on this machine. No draft is a normal answer, and costs nothing but a rare look; what was
expected wrongly is bounded by what drafts may lose (`Allowance`).
"""

from collections.abc import Callable, Sequence

from netgain.cost.step_cost import StepCost
from netgain.serving.engine.finish import drafts_kept
from netgain.serving.engine.protocols import Ask, Draft, Load, Turn
from netgain.serving.engine.request import Request
from netgain.serving.speculation.allowance import Allowance
from netgain.serving.speculation.draft_time import DraftTime
from netgain.serving.speculation.prices import PriceList, Prices
from netgain.serving.speculation.survival import Survival

# Steps between looks at a request whose drafts do not pay: drafts made of text are compared with what comes, unverified. And
# between decisions while a model's drafts pay for no request.
LOOK_EVERY = 8
EMPTY_ENOUGH = 16  # steps without a match in a row, after which a request is asked only so often, too
TRIED = 2  # drafts of a try, by which a model's drafts are judged that do not pay
PLAIN_EVERY = 64  # steps with drafts in a row, after which one without tells what these are compared with
# What drafts promise counts for so much, since of uncertain promises the too good ones are taken: less for a request without
# drafts than for one that has them, so that decisions last.
TAKEN_UP, KEPT = 0.85, 0.95
FADE, FADE_ALL = 0.98, 0.998
SPREAD = 64  # tokens, at most, that have to earn back what a model reads before its first draft of a request


class GoodputControl:
    """`cost` gives the step-cost curve in use, None while there is none: nothing can be weighed then, and nothing is drafted.

    With `computed` drafts come from a model: how many are made is decided before, and the time that they take is weighed.
    Else drafts are made first, and how many of them are verified is decided when they are seen.
    """

    def __init__(self, k: int, cost: Callable[[], StepCost | None], *, computed: bool) -> None:
        self._k = k
        self._computed = computed
        self._list = PriceList(k, cost)
        self._allowance = Allowance()
        self._making = DraftTime()
        self._all = Survival(k, FADE_ALL)
        self._known: dict[str, _Known] = {}
        self._rested = LOOK_EVERY - 1  # steps since a decision, while a model drafts for nobody
        self._drafting = 0  # steps with drafts in a row

    def limits(self, asks: Sequence[Ask], load: Load) -> list[int]:
        none = [0] * len(asks)
        prices = self._list.of(load)
        if prices is None or self._allowance.spent or self._drafting >= PLAIN_EVERY:
            return none
        if self._computed:
            return self._computed_limits(asks, load, prices) or none
        if not self._could_pay(prices):
            return none
        return [ask.limit if self._looks(ask) else 0 for ask in asks]

    def keep(self, asks: Sequence[Ask], drafts: Sequence[Draft], load: Load) -> list[int]:
        lengths = [len(draft.tokens) for draft in drafts]
        if self._computed:
            return lengths
        prices = self._list.of(load)
        kept = self._best(asks, lengths, load, prices) if prices is not None and any(lengths) else [0] * len(asks)
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

    def turned(self, load: Load, turn: Turn) -> None:
        prices = self._list.of(load)
        if prices is None:
            return
        plain_s = self._list.plain_s(prices)
        if self._computed and turn.depth:
            self._making.took(turn.depth, turn.draft_s)
        if turn.mixed:  # what the decodes alone would have taken
            took_s = plain_s + self._list.more_s(prices, turn.drafts)
        else:
            took_s = self._list.took(prices, turn.drafts, turn.seconds - turn.draft_s)
        saved_s = turn.committed / load.batch * plain_s - took_s if turn.drafts else 0.0
        self._allowance.stepped(turn.seconds, saved_s - turn.draft_s, plain_s)
        self._drafting = self._drafting + 1 if turn.drafts else 0

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        known = self._known.pop(request.id, None)
        if known is not None:
            self._resolve(known, tokens)

    def _of(self, request: Request) -> "_Known":
        known = self._known.get(request.id)
        if known is None:
            known = self._known[request.id] = _Known(self._k)
        return known

    def _could_pay(self, prices: Prices) -> bool:
        """Whether drafts that all stand would pay, for one request or for all: where not, none is worth a look."""
        batch, plain_s = prices.batch, prices.of(0)
        for count in range(1, self._k + 1):
            made_s = self._making.each_s(plain_s) * count if self._computed else 0.0
            for drafts in (count, count * batch):
                if (batch + drafts) * plain_s > batch * (prices.of(drafts) * self._list.dearer + made_s):
                    return True
        return False

    def _computed_limits(self, asks: Sequence[Ask], load: Load, prices: Prices) -> list[int] | None:
        """None: no drafts. While there are none, that is decided anew only now and then."""
        if not any(self._of(ask.request).on for ask in asks):
            self._rested += 1
            if self._rested < LOOK_EVERY:
                return None
            self._rested = 0
            if not self._could_pay(prices):
                return None
        wanted = self._best(asks, [ask.limit for ask in asks], load, prices)
        for ask, count in zip(asks, wanted, strict=True):
            self._of(ask.request).on = count > 0
        if not any(wanted):
            wanted = self._try(asks, prices)
        unread = 0
        for ask, count in zip(asks, wanted, strict=True):
            if count:
                unread += self._unread(ask)
                self._of(ask.request).read = len(ask.tokens)
        self._making.reads(unread)
        return wanted

    def _unread(self, ask: Ask) -> int:
        """Tokens that a model has to read before it drafts, beyond those of a step or two."""
        return max(0, len(ask.tokens) - self._of(ask.request).read - self._k - 1)

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

    def _try(self, asks: Sequence[Ask], prices: Prices) -> list[int]:
        """A few drafts for the request that is read furthest, now and then, so that it shows when they begin to pay."""
        tries = [0] * len(asks)
        chosen = min(range(len(asks)), key=lambda index: (self._unread(asks[index]), -asks[index].limit))
        count = min(TRIED, asks[chosen].limit)
        plain_s = prices.of(0)
        price_s = self._making.of(count, self._unread(asks[chosen]), plain_s) + prices.of(count) - plain_s
        if self._allowance.affords(price_s, plain_s):
            tries[chosen] = count
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

    def _best(self, asks: Sequence[Ask], most: Sequence[int], load: Load, prices: Prices) -> list[int]:
        """How many drafts of each request to verify, at most `most`, so that expected tokens per second are the most."""
        expected = self._all.expected()
        plain_s = prices.of(0)
        slots: list[tuple[float, int, int]] = []
        for index, (ask, count) in enumerate(zip(asks, most, strict=True)):
            known = self._of(ask.request)
            survives = KEPT if known.on else TAKEN_UP
            if self._computed and not known.on:
                survives *= self._worth_reading(ask, known, expected, prices)
            for position, chance in enumerate(known.survival.chances(expected)[:count]):
                survives *= chance
                slots.append((-survives, position, index))
        slots.sort()
        dearer, each_s = self._list.dearer, self._making.each_s(plain_s)
        most_s = plain_s + self._allowance.left_s(plain_s)
        best, taken, depth = load.batch / plain_s, 0, self._k
        # drafts that a model makes cost time by the longest chain, so every length is weighed by itself
        for cap in range(1, self._k + 1) if self._computed else (self._k,):
            made_s = cap * each_s if self._computed else 0.0
            gained, count = float(load.batch), 0
            for negative, position, _ in slots:
                if position >= cap:
                    continue
                gained -= negative
                count += 1
                step_s = prices.of(count) * dearer + made_s
                if gained > best * step_s and step_s <= most_s:
                    best, taken, depth = gained / step_s, count, cap
        chosen = [0] * len(asks)
        for _, _, index in [slot for slot in slots if slot[1] < depth][:taken]:
            chosen[index] += 1
        return chosen

    def _worth_reading(self, ask: Ask, known: "_Known", expected: Sequence[float], prices: Prices) -> float:
        """The share of what its drafts promise that is left once a model has read what it missed."""
        unread = self._unread(ask)
        if not unread:
            return 1.0
        promised = survives = 1.0
        for chance in known.survival.chances(expected):
            survives *= chance
            promised += survives
        promised -= 1.0
        plain_s, request = prices.of(0), ask.request
        token_s = plain_s / prices.batch  # without drafts
        left = request.sampling.max_tokens - (len(ask.tokens) - len(request.prompt))
        steps = max(1.0, min(left, SPREAD) / (1.0 + promised))
        price = self._making.of(0, unread, plain_s) / (token_s * steps)  # in tokens a step
        return max(0.0, 1.0 - price / promised)


class _Known:
    """What is known of one request."""

    __slots__ = ("empty", "on", "read", "rested", "survival", "unverified")

    def __init__(self, k: int) -> None:
        self.survival = Survival(k, FADE)
        self.on = False
        self.rested = LOOK_EVERY - 1  # steps since drafts were last asked for, so that the first step asks
        self.empty = 0  # asked in vain since the last draft
        self.read = 0  # tokens that a model has read of it
        self.unverified: tuple[int, tuple[int, ...]] | None = None  # where drafts stood that nobody verified
