"""Does a tier ever cost more than it brings? Every bundled workload, and one without a single hit, with each tier under the
measured policy and without tiers, by turns in one process."""

import contextlib
import itertools
from collections import defaultdict
from functools import partial

from benchmarks import _kv_process, _kv_warm, _report
from benchmarks._kv_process import Answer
from benchmarks._pieces import Found, Kept, Piece, Value
from netgain.deciding.experiment.observation import pair_values
from netgain.deciding.experiment.statistics import Effect, mean_effect
from netgain.measuring.workload.load import bundled_names, load_workload
from netgain.serving.blocks.scope import Scope

LIMIT = 1.03  # of mean time to first token, with a tier over without
PART = "workloads/"
ROUNDS = 3
WITHOUT = "without"
NO_HITS = "no-hits"  # the longest prompts there are, none of which begins like another
_LONGEST, _NO_HITS_PROMPTS = "shared-prefix", 16
_BLOCK = 8  # prompts that one arm answers before the next arm does
_KV_TOKENS = 1024  # of the device: the longest prompts push each other out
_ROUND_S = {"chat": 13.0, "documents": 60.0, "edit": 18.0, "shared-prefix": 33.0, NO_HITS: 24.0}
_OTHER_S = 30.0
_START_S = 12.0


def nothing_known() -> dict[str, _report.Figure]:
    return {"worst_ttft_ratio_with_policy": None, "workloads_worse_than_3_percent": None}


class Workloads:
    """The engines of all rounds, made when the first round needs them."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._engines: _kv_process.Arms | None = None
        self._missing: dict[str, str] = {}

    def pieces(self) -> list[Piece]:
        names = (*bundled_names(), NO_HITS)
        return [
            Piece(
                f"{PART}{name}/{number}",
                _ROUND_S.get(name, _OTHER_S) + (0.0 if number or place else _START_S),
                partial(self._measure, name, number),
            )
            for number in range(ROUNDS)
            for place, name in enumerate(names)
        ]

    def _measure(self, name: str, number: int) -> Value:
        """One round: nobody has seen its prompts, since each round has a salt of its own; links and costs stay learnt."""
        engines = self._engines = self._engines or self._start()
        items = load_workload(_LONGEST if name == NO_HITS else name).items
        prompts = [engines.ids_of(item) for item in items]
        salts = [Scope(cache_salt=f"{name}/{number}").salt] * len(prompts)
        if name == NO_HITS:
            prompts = prompts[:_NO_HITS_PROMPTS]
            salts = [Scope(cache_salt=f"{name}/{number}/{place}").salt for place in range(len(prompts))]
        times: dict[str, list[float]] = {arm: [] for arm in engines.names}
        answers: dict[str, list[Answer]] = {arm: [] for arm in engines.names}
        for block, first in enumerate(range(0, len(prompts), _BLOCK)):
            for arm in turned(engines.names, block + number):
                asked = zip(prompts[first : first + _BLOCK], salts[first : first + _BLOCK], strict=True)
                answers[arm] += [engines.first(arm, prompt, salt=salt, settled=False) for prompt, salt in asked]
                engines.settle(arm)
        for arm, own in answers.items():
            times[arm] = [answer.ttft_s for answer in own]
        outputs = {arm: [answer.output_ids for answer in own] for arm, own in answers.items()}
        return {
            "times": times,
            "loaded": {arm: sum(answer.loaded for answer in own) for arm, own in answers.items()},
            "prompt_tokens": sum(map(len, prompts)),
            "wrong": sum(a != b for arm in outputs for a, b in zip(outputs[arm], outputs[WITHOUT], strict=True)),
            "missing": self._missing,
        }

    def _start(self) -> _kv_process.Arms:
        arms: dict[str, tuple[str, ...]] = {WITHOUT: ()}
        for tier in _kv_warm.TIERS:
            try:
                own = "dram:1GiB" if tier == "dram" else self._stack.enter_context(_kv_warm.place(tier))
                arms[tier] = (own, "measured")
            except ModuleNotFoundError as error:
                self._missing[tier] = str(error)
        engines = self._stack.enter_context(_kv_process.Arms(arms, kv_tokens=_KV_TOKENS, keeps=True, output_tokens=4))
        engines.learn_links()
        return engines


def turned(arms: tuple[str, ...], turn: int) -> tuple[str, ...]:
    """Each arm comes first, and last, as often as any other."""
    at = turn % len(arms)
    found = arms[at:] + arms[:at]
    return found if (turn // len(arms)) % 2 == 0 else found[::-1]


def found(kept: Kept) -> Found:
    """`worst_ttft_ratio_with_policy`: the largest over workloads and tiers of mean time to first token with the tier over
    without. Blocks of prompts are resampled for the intervals of 95 %, as by the lab."""
    rounds: dict[str, dict[int, Value]] = defaultdict(dict)
    for name, value in kept.of(PART).items():
        workload, _, number = name.rpartition("/")
        rounds[workload][int(number)] = value
    if not rounds:
        return Found({}, {}, {})
    cells: dict[str, dict[str, object]] = {}
    ratios: dict[str, float] = {}
    worse: list[str] = []
    for workload, values in rounds.items():
        for tier in next(iter(values.values()))["times"]:
            effect = None if tier == WITHOUT else effect_of(values, tier)
            if effect is None:
                continue
            cell = f"{workload}/{tier}"
            low, high = (None if end is None else 1 / end for end in (effect.high, effect.low))
            ratios[cell] = 1 / effect.ratio
            tokens = sum(value["prompt_tokens"] for value in values.values())
            loaded = sum(value["loaded"][tier] for value in values.values())
            cells[cell] = {
                "ratio": ratios[cell],
                "low": low,
                "high": high,
                "blocks": effect.units,
                "loaded": loaded / tokens,
            }
            if low is not None and low > LIMIT:
                worse.append(cell)
    finished = min(len(values) for values in rounds.values()) if len(rounds) > len(bundled_names()) else 0
    left_out = {
        tier: said for value in rounds.values() for one in value.values() for tier, said in one["missing"].items()
    }
    missing = f"{finished} of {ROUNDS} rounds were finished" if finished < ROUNDS else "; ".join(left_out.values())
    known = finished == ROUNDS and not left_out
    return Found(
        {
            "worst_ttft_ratio_with_policy": max(ratios.values()) if known else None,
            "workloads_worse_than_3_percent": len(worse) if known else None,
        },
        {"ttft_ratios_with_policy": cells, "worse_than_3_percent": worse},
        {} if known else dict.fromkeys(nothing_known(), missing),
        sum(one["wrong"] for values in rounds.values() for one in values.values()),
    )


def effect_of(rounds: dict[int, Value], tier: str) -> Effect | None:
    """Of all rounds, times without over times with the tier."""
    sides: dict[str, dict[tuple[int, str], list[float]]] = {WITHOUT: {}, tier: {}}
    group, groups = itertools.count(), set()
    for number, value in sorted(rounds.items()):
        for first in range(0, len(value["times"][tier]), _BLOCK):
            block = next(group)
            groups.add(block)
            for side, times in sides.items():
                for place, seconds in enumerate(value["times"][side][first : first + _BLOCK]):
                    times[block, f"{number}/{first + place}"] = [seconds]
    return mean_effect(pair_values(sides[WITHOUT], sides[tier], dict.fromkeys(groups, 0)), seed=0)
