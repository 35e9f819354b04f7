"""Are verdicts right? 2,000 experiments whose truth is known, with the noise of equal servers recorded on a real machine.

python -m benchmarks.verdicts [--json FILE] [--experiments N] [--recording NAME=FILE]... With --record FILE --rounds N it only
records, with --record FILE --join PART... it only writes several recordings as one. A recording holds rounds: two servers of
the same configuration, started afresh, answered the same prompts in mirrored blocks. An experiment of the default design
draws as many rounds as it has starts (more where noise makes it grow), in any order, and calls the server that was started
first the baseline in even starts and the candidate in odd ones, as the design does; so the true effect is none, and a planted
one scales the candidate's times. As in the design a second server of the baseline (the control) answers every fourth group, made
of two rounds (see _control.py), and the checks that void a run are made, as far as recordings hold what they read.

There are two recordings, of a quiet machine and of one on which other work ran; half of the experiments are of each.
`false_adopt_rate`, `false_reject_rate`: of equal arms, in the recording where it is higher. `coverage_95`: intervals that hold
the truth, over equal and planted arms, in the recording where it is farther from 95 %. `power_at_5_percent`: candidates 1.05x
as fast that are adopted, and `loss_found_at_5_percent`: as slow that are rejected, in the recording where it is lower.
`half_percent_inconclusive`: candidates 0.5 % slower on which nothing is decided, the lower. Every figure is also there by
recording, with `starts_mean`, `detectable_effect` (the median of what verdicts themselves say they could find) and
`cpu_s_per_verdict`.
"""

import asyncio
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import _report
from benchmarks._control import checked, with_control
from benchmarks._recording import Recording, join, load, save
from netgain.deciding.decide.prompts import prepare_items
from netgain.deciding.decide.server import served_model
from netgain.deciding.decide.settings import FULL, Settings
from netgain.deciding.experiment.analyse import Analysis, Terms, analyse
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.deciding.experiment.conduct import Asking, Trial, conduct
from netgain.deciding.experiment.design import Design, grouped
from netgain.deciding.experiment.growth import grow
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT, Check, Decision
from netgain.measuring.workload.load import load_workload

EXPERIMENTS = 2000
SEED = 20261130
EFFECT = 1.05
SMALL_LOSS = 1 / 1.005
RECORDINGS = Path(__file__).parent / "recordings"
QUIET, BUSY = "quiet", "busy"
RECORDED_TOKENS = 32
Judge = Callable[[Sequence[Observation], Terms, Sequence[Check]], Analysis]
# At least and at most.
LIMITS: Mapping[str, tuple[float, float]] = {
    "false_adopt_rate": (0.0, 0.05),
    "coverage_95": (0.93, 0.97),
    "power_at_5_percent": (0.8, 1.0),
}
SWAPPED = {BASELINE: CANDIDATE, CANDIDATE: BASELINE}  # in recordings the baseline is the server started first


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument(
        "--experiments", type=int, default=EXPERIMENTS, help="of equal arms, and of planted ones, in all"
    )
    parser.add_argument(
        "--recording", action="append", default=[], metavar="NAME=FILE", help="use these instead, the quiet one first"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="record equal servers into FILE, and do nothing else"
    )
    parser.add_argument("--rounds", type=int, default=14, help="starts of both servers to record")
    parser.add_argument(
        "--join",
        type=Path,
        nargs="+",
        metavar="PART",
        help="write these recordings as one into --record, and do nothing else",
    )
    options = parser.parse_args()
    if options.join:
        if not options.record:
            parser.error("--join needs --record FILE to write into")
        join(options.record, options.join)
        return
    if options.record:
        save(options.record, asyncio.run(record(options.rounds)), _report.machine())
        return
    named = dict(one.split("=", 1) for one in options.recording) or {
        name: str(RECORDINGS / f"equal-servers-{name}.npz") for name in (QUIET, BUSY)
    }
    recordings = {name: load(Path(path)) for name, path in named.items()}
    each = {name: measure(found, options.experiments // len(named)) for name, found in recordings.items()}
    context = {"recordings": {name: found.context for name, found in recordings.items()}, "seed": SEED}
    _report.write(options.json, summary(each), context, "Verdicts on experiments whose truth is known")


def summary(each: dict[str, dict[str, float]]) -> dict[str, _report.Figure]:
    """The figures asked for, each of the recording where it is worst, and those of each recording."""
    return {
        "false_adopt_rate": max(one["false_adopt_rate"] for one in each.values()),
        "false_reject_rate": max(one["false_reject_rate"] for one in each.values()),
        "coverage_95": max((one["coverage_95"] for one in each.values()), key=lambda found: abs(found - 0.95)),
        "power_at_5_percent": min(one["power_at_5_percent"] for one in each.values()),
        "loss_found_at_5_percent": min(one["loss_found_at_5_percent"] for one in each.values()),
        "half_percent_inconclusive": min(one["half_percent_inconclusive"] for one in each.values()),
        "starts": FULL.starts,
        **{f"{name}_{figure}": value for name, one in each.items() for figure, value in one.items()},
    }


def missed(figures: Mapping[str, float]) -> tuple[str, ...]:
    """Which of the limits that verdicts must keep these figures do not, by name; a judge that decides nothing misses some."""
    return tuple(name for name, (low, high) in LIMITS.items() if not low <= figures[name] <= high)


def measure(recording: Recording, experiments: int, seed: int = SEED, judge: Judge = analyse) -> dict[str, float]:
    """All figures of one recording, from `experiments` of equal arms and as many with a planted gain."""
    began = time.process_time()
    equal = verdicts(recording, experiments, 1.0, seed, judge)
    faster = verdicts(recording, experiments, EFFECT, seed + 1, judge)
    slower = verdicts(recording, max(1, experiments // 4), 1 / EFFECT, seed + 2, judge)
    barely = verdicts(recording, max(1, experiments // 4), SMALL_LOSS, seed + 3, judge)
    spent_s = time.process_time() - began
    covered = [covers(found, 1.0) for found in equal] + [covers(found, EFFECT) for found in faster]
    return {
        "false_adopt_rate": share(equal, "adopt"),
        "false_reject_rate": share(equal, "reject"),
        "coverage_95": sum(covered) / len(covered),
        "power_at_5_percent": share(faster, "adopt"),
        "loss_found_at_5_percent": share(slower, "reject"),
        "half_percent_inconclusive": share(barely, "inconclusive"),
        "detectable_effect": float(np.median([found.verdict.detectable or np.inf for found in equal])),
        "starts_mean": sum(starts_of(found) for found in equal) / len(equal),
        "void_rate": sum(found.verdict.void for found in equal) / len(equal),
        "rounds_recorded": len(recording.rounds),
        "experiments": experiments,
        "cpu_s_per_verdict": spent_s / (len(equal) + len(faster) + len(slower) + len(barely)),
    }


def verdicts(recording: Recording, count: int, speedup: float, seed: int, judge: Judge = analyse) -> list[Analysis]:
    """Judge `count` experiments; the truth is that the candidate is `speedup` times as fast."""
    generator = np.random.default_rng(seed)
    hastened = [[scaled(seen, speedup) for seen in part] for part in recording.rounds]
    found = []
    for number in range(count):
        drawn = draw(recording, hastened, generator)
        found.append(judge(drawn, Terms(promises_identity=True, seed=number), checked(drawn)))
    return found


def draw(
    recording: Recording, hastened: Sequence[Sequence[Observation]], generator: np.random.Generator
) -> list[Observation]:
    """One experiment: rounds in any order, none twice; it grows as the design does, as far as there are rounds. The noise of its
    control comes from the same rounds in another order."""
    recorded = len(recording.rounds)
    most = max(FULL.starts, min(FULL.most_starts or 0, recorded - recorded % 2))
    chosen = generator.permutation(recorded)[:most].tolist()
    others = apart_from(chosen, recorded, generator)
    found = placed(recording, hastened, chosen[: FULL.starts], 0, others)
    if most > FULL.starts:
        wanted = grow(found, most, MINIMUM_EFFECT).starts
        found += placed(recording, hastened, chosen[FULL.starts : wanted], FULL.starts, others[FULL.starts :])
    return found


def apart_from(chosen: Sequence[int], recorded: int, generator: np.random.Generator) -> list[int]:
    """As many rounds as were chosen, none twice, and in no place the one that was chosen there."""
    while True:
        others: list[int] = generator.permutation(recorded)[: len(chosen)].tolist()
        if all(one != other for one, other in zip(chosen, others, strict=True)):
            return others


def placed(
    recording: Recording,
    hastened: Sequence[Sequence[Observation]],
    chosen: Sequence[int],
    first: int,
    others: Sequence[int],
) -> list[Observation]:
    """The chosen rounds as starts from `first` on, each with a control whose noise is of the round in `others`."""
    found: list[Observation] = []
    every = FULL.control_every or 1
    for start, place, other in zip(range(first, first + len(chosen)), chosen, others, strict=False):
        groups, blocks = recording.size(place)
        in_all = blocks + 2 * math.ceil(groups / every)
        faster = {
            id(plain.record): quick.record
            for plain, quick in zip(recording.rounds[place], hastened[place], strict=True)
        }
        pair = [as_arms(recording.rounds[one], start) for one in (place, other)]
        for seen in with_control(pair[0], pair[1], every, scaled):
            found.append(
                Observation(
                    arm=seen.arm,
                    start=start,
                    group=start * groups + seen.group,
                    block=start * in_all + seen.block,
                    record=faster[id(seen.record)] if seen.arm == CANDIDATE else seen.record,
                )
            )
    return found


def as_arms(seen: Sequence[Observation], start: int) -> list[Observation]:
    """The server started first is the baseline in even starts and the candidate in odd ones, as the design starts them."""
    return [msgspec.structs.replace(one, arm=SWAPPED[one.arm]) for one in seen] if start % 2 else list(seen)


def scaled(seen: Observation, speedup: float) -> Observation:
    """The observation as if everything after the scheduled time had been `speedup` times as fast."""
    record = seen.record

    def at(stamp_s: float) -> float:
        return record.scheduled_s + (stamp_s - record.scheduled_s) / speedup

    return msgspec.structs.replace(
        seen,
        record=msgspec.structs.replace(
            record,
            finished_s=at(record.finished_s),
            first_token_s=None if record.first_token_s is None else at(record.first_token_s),
            chunk_times_s=tuple(at(stamp_s) for stamp_s in record.chunk_times_s),
        ),
    )


def covers(found: Analysis, truth: float) -> bool:
    """Whether the interval of the primary metric holds the truth; no interval holds nothing."""
    interval = None if found.e2e_median is None else found.e2e_median.interval
    return interval is not None and interval[0] <= truth <= interval[1]


def starts_of(found: Analysis) -> int:
    """How many starts a verdict rests on."""
    return 0 if found.e2e_median is None else found.e2e_median.units


def share(found: Sequence[Analysis], decision: Decision) -> float:
    return Counter(one.verdict.decision for one in found)[decision] / len(found)


async def record(rounds: int) -> list[Trial]:
    """Two equal servers, started again for each round, answering a share of the chat prompts in the default design."""
    trials = []
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(output=Path(folder), output_tokens=RECORDED_TOKENS)
        items = prepare_items(load_workload("chat"), settings)
        size = FULL.groups * FULL.group_size
        for number in range(rounds):
            chosen = [items[(number * size + place) % len(items)] for place in range(size)]
            arms = {
                name: launched_netgain(name, ("default", "--speculation", "none"), Path(folder) / f"{name}.log")
                for name in (BASELINE, CANDIDATE)
            }
            try:
                for arm in arms.values():
                    await arm.start()
                    await arm.ready(settings.start_timeout_s)
                model = (await served_model(arms[BASELINE].url, {})).name
                design = Design(groups=grouped(chosen, FULL.groups, FULL.group_size), concurrency=1)
                trials.append(await conduct(arms, design, Asking(model=model), f"recording-{number}"))
            finally:
                for arm in arms.values():
                    await arm.stop()
    return trials


if __name__ == "__main__":
    main()
