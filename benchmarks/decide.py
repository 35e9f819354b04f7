"""Does the verdict hold? `netgain decide` on copying and chat prompts, and on baselines that were only relabelled.

python -m benchmarks.decide [--json FILE] [--full] [--rounds N] [--keep DIR]. `copy_verdict_adopt`: 1 if n-gram speculation is
adopted on the edit workload at concurrency 1. `relabelled_adopt_rate`: 200 experiments whose blocks are all recordings of
one baseline server, drawn and labelled at random; what is adopted there is a false claim. `planted_adopt_rate`: the same
sets with the candidate's times divided by 1.3; what is not adopted there is a gain that was missed.
`predicted_speedup_error`: the larger of the relative errors of the predicted speedups (end to end, and per output token) on
the edit workload. `server_client_gap_ms`: median time the client waited beyond the server's own stages (opening the
connection not counted). `first_verdict_s`: from the start of the quick form to its verdict. The chat workload's figures are
whatever they are.
"""

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks import _report
from netgain.deciding.decide.loop import decide
from netgain.deciding.decide.prompts import prepare_items
from netgain.deciding.decide.server import served_model
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.arms.netgain import launched_netgain
from netgain.deciding.experiment.conduct import Asking, warm_up, with_salt
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.verdict import Decision
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.report.write import write_report
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.client.run import run
from netgain.measuring.workload.arrivals import Closed
from netgain.measuring.workload.load import load_workload

RELABELLED = 200
PLANTED = 1.3
GROUPS = 8
GROUP_SIZE = 3
ORDER = (BASELINE, CANDIDATE, CANDIDATE, BASELINE)
Recordings = dict[int, list[list[Observation]]]  # by group, blocks of the baseline in order of time


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument(
        "--full", action="store_true", help="the full form of decide (more prompts, whole outputs, slow)"
    )
    parser.add_argument("--rounds", type=int, default=6, help="recorded baseline blocks per group of prompts")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the reports there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.keep or Path(temporary)
        outcomes: dict[str, Outcome] = {}
        for workload in ("edit", "chat"):
            settings = Settings(
                output=folder / workload, workload=workload, quick=not options.full, techniques=("ngram",)
            )
            outcomes[workload] = decide(settings)
            write_report(outcomes[workload], settings.output)
        recordings = asyncio.run(record_baseline(folder / "relabelled", options.rounds))
    adopted = relabelled(recordings, RELABELLED)
    planted = relabelled(recordings, RELABELLED, speedup=PLANTED)
    edit = outcomes["edit"]
    figures: dict[str, _report.Figure] = {
        "copy_verdict_adopt": _decision(edit) == "adopt",
        "relabelled_adopt_rate": adopted.count("adopt") / len(adopted),
        "server_client_gap_ms": None if edit.server_client_gap_s is None else edit.server_client_gap_s * 1e3,
        "predicted_speedup_error": prediction_error(edit),
        "first_verdict_s": edit.first_verdict_s,
        "planted_adopt_rate": planted.count("adopt") / len(planted),
        "relabelled_reject_rate": adopted.count("reject") / len(adopted),
        "relabelled_sets": len(adopted),
    }
    for workload, outcome in outcomes.items():
        figures |= figures_of(workload, outcome)
    context = {"form": "full" if options.full else "quick", "rounds": options.rounds, "concurrency": 1}
    _report.write(options.json, figures, context, "Verdicts of netgain decide")


def figures_of(workload: str, outcome: Outcome) -> dict[str, _report.Figure]:
    """What one decision found, flat."""
    analysis = outcome.analysis
    if analysis is None:
        return {f"{workload}_verdict": None}
    verdict, tpot = analysis.verdict, analysis.tpot_median
    primary = verdict.primary
    scores = {row.figure: row for row in outcome.scores}
    return {
        f"{workload}_verdict": verdict.decision,
        f"{workload}_void": verdict.void,
        f"{workload}_speedup_e2e": primary.ratio if primary else None,
        f"{workload}_speedup_e2e_low": primary.low if primary else None,
        f"{workload}_speedup_e2e_high": primary.high if primary else None,
        f"{workload}_speedup_tpot": tpot.ratio if tpot else None,
        f"{workload}_predicted_speedup_e2e": outcome.prediction.speedup_e2e if outcome.prediction else None,
        f"{workload}_predicted_speedup_tpot": outcome.prediction.speedup_tpot if outcome.prediction else None,
        f"{workload}_prediction_error": prediction_error(outcome),
        f"{workload}_noise_floor": verdict.noise_floor,
        f"{workload}_committed_per_step": scores["tokens committed per step"].measured,
        f"{workload}_looped_share": verdict.looped.share,
        f"{workload}_speedup_without_loops": verdict.looped.without.ratio if verdict.looped.without else None,
        f"{workload}_prompts": outcome.asked.prompts,
        f"{workload}_identical_prompts": (
            verdict.identity.compared - len(verdict.identity.differing) if verdict.identity else None
        ),
        f"{workload}_residual_ms": analysis.waterfall.residual_ns / 1e6 if analysis.waterfall else None,
        f"{workload}_foreign_cpu_cores": next(
            (check.value for check in verdict.checks if check.name == "other work on the machine"), None
        ),
        f"{workload}_first_verdict_s": outcome.first_verdict_s,
    }


def prediction_error(outcome: Outcome) -> float | None:
    """The larger relative error of the two predicted median speedups; None when neither could be scored."""
    errors = [
        abs(row.error) for row in outcome.scores if row.unit == "x" and "median" in row.figure and row.error is not None
    ]
    return max(errors, default=None)


def _decision(outcome: Outcome) -> Decision | None:
    return outcome.analysis.verdict.decision if outcome.analysis else None


async def record_baseline(folder: Path, rounds: int) -> Recordings:
    """Blocks of one baseline server answering the groups of the quick form's edit prompts, `rounds` times each in a row."""
    settings = Settings(output=folder, quick=True)
    items = prepare_items(load_workload(settings.workload), settings)[: GROUPS * GROUP_SIZE]
    server = launched_netgain(BASELINE, ("default", "--speculation", "none"), folder / "baseline.log")
    recordings: Recordings = defaultdict(list)
    try:
        await server.start()
        await server.ready(settings.start_timeout_s)
        model = (await served_model(server.url, {})).name
        options = Options(server_record=True, server_tokens=True)
        await warm_up(server, items[:2], Asking(model=model, options=options), "warm-up")
        for group in range(GROUPS):
            for turn in range(rounds):
                salted = with_salt(options, f"relabelled-{group}-{turn}")
                done = await run(server.url, model, items[group::GROUPS], Closed(1), salted)
                recordings[group].append(
                    [Observation(arm=BASELINE, group=group, block=turn, record=record) for record in done.records]
                )
    finally:
        await server.stop()
    return recordings


def relabelled(recordings: Recordings, count: int, seed: int = 0, speedup: float = 1.0) -> list[Decision]:
    """Verdicts on experiments that hold nothing but the baseline: groups drawn with replacement, four of a group's blocks
    drawn in any order and labelled A B B A. The candidate's times are divided by `speedup`."""
    generator = np.random.default_rng(seed)
    decisions: list[Decision] = []
    groups = sorted(recordings)
    for trial in range(count):
        observations: list[Observation] = []
        for place, group in enumerate(generator.choice(groups, size=len(groups))):
            blocks = recordings[int(group)]
            chosen: Sequence[int] = generator.choice(len(blocks), size=len(ORDER), replace=False).tolist()
            for turn, (arm, block) in enumerate(zip(ORDER, chosen, strict=True)):
                factor = speedup if arm == CANDIDATE else 1.0
                observations += [
                    Observation(
                        arm=arm, group=place, block=len(ORDER) * place + turn, record=hastened(seen.record, factor)
                    )
                    for seen in blocks[block]
                ]
        decisions.append(analyse(observations, Terms(promises_identity=True, seed=trial)).verdict.decision)
    return decisions


def hastened(record: ClientRecord, factor: float) -> ClientRecord:
    """The record as if everything after its scheduled time had been `factor` times as fast."""

    def at(stamp_s: float) -> float:
        return record.scheduled_s + (stamp_s - record.scheduled_s) / factor

    return msgspec.structs.replace(
        record,
        finished_s=at(record.finished_s),
        first_token_s=None if record.first_token_s is None else at(record.first_token_s),
        chunk_times_s=tuple(at(stamp_s) for stamp_s in record.chunk_times_s),
    )


if __name__ == "__main__":
    main()
