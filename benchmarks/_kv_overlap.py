"""What it brings to load the end of a prefix by layers while the suffix is computed: requests by turns, with and without."""

import statistics

from benchmarks import _kv_process, _report

RATES = ("50MB", "100MB", "200MB", "500MB", "1GB", "2GB")
PREFIX, SUFFIX = 1024, 256
WARM_UPS = 4  # store, learn what computing costs, learn the link, and once as it will be


def nothing_known() -> dict[str, _report.Figure]:
    return {f"overlap_speedup_{rate}": None for rate in RATES}


def measure(repeats: int, wrong: list[int], context: dict[str, object]) -> dict[str, _report.Figure]:
    """The time to the first token without overlap over that with it, by medians."""
    figures: dict[str, _report.Figure] = {}
    shown: dict[str, object] = {}
    for rate in RATES:
        tier = f"dram:1GiB?bandwidth={rate}&latency=200us"
        arms = {
            "whole": (tier, "measured", "layer_groups=1"),
            "layers": (tier, "measured"),
        }
        with _kv_process.Arms(arms) as engines:
            ids = engines.tokenizer.encode(_kv_process.TEXT * 2)
            times: dict[str, list[float]] = {arm: [] for arm in arms}
            for turn in range(WARM_UPS + repeats):
                # each suffix is another one, or it would be in the tier as well
                prompt = (*ids[:PREFIX], *reversed(ids[turn : turn + SUFFIX]))
                order = list(arms) if turn % 2 else list(reversed(arms))
                answers = {arm: engines.first(arm, prompt) for arm in order}
                wrong.append(answers["whole"].output_ids != answers["layers"].output_ids)
                if turn >= WARM_UPS:
                    for arm, answer in answers.items():
                        times[arm].append(answer.ttft_s)
            overlaps = engines.counter("layers", "kv_overlaps")
            late = engines.counter("layers", "kv_overlaps_late")
        medians = {arm: statistics.median(values) for arm, values in times.items()}
        figures[f"overlap_speedup_{rate}"] = medians["whole"] / medians["layers"]
        shown[rate] = {**medians, "overlaps": overlaps, "late": late, "requests": WARM_UPS + repeats}
    context["overlap"] = shown
    return figures
