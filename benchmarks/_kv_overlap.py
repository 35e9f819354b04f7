"""What it brings to load the end of a prefix by layers while the suffix is computed: requests by turns, with and without."""

import statistics
from functools import partial

from benchmarks import _kv_process, _report
from benchmarks._pieces import Found, Kept, Piece, Value

RATES = ("50MB", "100MB", "200MB", "500MB", "1GB", "2GB")
PREFIX, SUFFIX = 1024, 256
PART = "overlap/"
_WARM_UPS = 4  # store, learn what computing costs, learn the link, and once as it will be
_TURNS = 2  # of each repeat


def nothing_known() -> dict[str, _report.Figure]:
    return {f"overlap_speedup_{rate}": None for rate in RATES}


def pieces(repeats: int) -> list[Piece]:
    turns = _WARM_UPS + _TURNS * repeats
    return [
        Piece(f"{PART}{rate}/{repeats}", 4.0 + turns * (1.6 if rate == "50MB" else 1.0), partial(_measure, rate, turns))
        for rate in RATES
    ]


def found(kept: Kept, repeats: int) -> Found:
    """The time to the first token without overlap over that with it, by medians."""
    figures: dict[str, _report.Figure] = {}
    shown: dict[str, object] = {}
    wrong: list[int] = []
    for name, value in kept.of(PART).items():
        rate, _, of = name.partition("/")
        if of != str(repeats):
            continue
        medians = {arm: statistics.median(times) for arm, times in value["times"].items()}
        figures[f"overlap_speedup_{rate}"] = medians["whole"] / medians["layers"]
        shown[rate] = {**medians, **{key: value[key] for key in ("overlaps", "late", "requests")}}
        wrong.append(value["wrong"])
    return Found(figures, {"overlap": shown} if shown else {}, {}, sum(wrong) if wrong else None)


def _measure(rate: str, turns: int) -> Value:
    tier = f"dram:1GiB?bandwidth={rate}&latency=200us"
    arms = {"whole": (tier, "measured", "layer_groups=1"), "layers": (tier, "measured")}
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    wrong = 0
    with _kv_process.Arms(arms) as engines:
        ids = engines.tokenizer.encode(_kv_process.TEXT * 2)
        for turn in range(turns):
            # each suffix is another one, or it would be in the tier as well
            prompt = (*ids[:PREFIX], *reversed(ids[turn : turn + SUFFIX]))
            answers = {arm: engines.first(arm, prompt) for arm in (arms if turn % 2 else reversed(arms))}
            wrong += answers["whole"].output_ids != answers["layers"].output_ids
            if turn >= _WARM_UPS:
                for arm, answer in answers.items():
                    times[arm].append(answer.ttft_s)
        overlaps, late = (engines.counter("layers", name) for name in ("kv_overlaps", "kv_overlaps_late"))
    return {"times": times, "overlaps": overlaps, "late": late, "requests": turns, "wrong": wrong}
