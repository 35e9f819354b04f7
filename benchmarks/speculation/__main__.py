"""What every way to draft is worth by domain and load, and whether the control of drafts ever costs.

python -m benchmarks.speculation [--json FILE] [--minutes N] [--draft FOLDER...] [--data FILE] [--peers]. Engines of one
process, one for every arm, go through the same prompts in slices of a tenth of a second each, so that what disturbs the
machine disturbs them alike. `speedup_{category}_{proposer}_c{N}` (and `_low`, `_high`: 95 % over rounds): time of no
speculation over time with drafts (up to K of them, no control), N requests at once, prompts included;
`tokens_per_iteration_...`: tokens committed per decode step; `overhead_...`: how much longer such a step takes than one
without speculation. Categories: Spec-Bench's six groups (first turns) and `copy`, the bundled workload of editing tasks;
`speedup_{copy}_c1` is that of the best proposer, `categories_above_1_c1` counts the others that are faster with the whole
interval of theirs. `worst_goodput_ratio`: the lowest ratio, over bundled workloads, proposers and {1, 2, 4, 8, 16, 32}
requests at once, of the time without speculation over that under the goodput control, with its interval; exit code 1 where a
whole interval lies beyond 3 %. `token_mismatches`: requests whose tokens differ from those without speculation, of
`requests_compared`. Cells run in the order of what they tell until the minutes are over; what did not run is null. With
--json every round is kept beside it, and the same command goes on where the last one stopped (its minutes are counted anew).
With --peers, vLLM's CPU build gets a part of the minutes.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
from rich.console import Console

from benchmarks import _report
from benchmarks._signals import cancelled_by_signals
from benchmarks.speculation import peers
from benchmarks.speculation.arms import manifest_of, proposers
from benchmarks.speculation.cells import Journal
from benchmarks.speculation.figures import COSTS_AT_MOST, drafted_alone, figures
from benchmarks.speculation.measuring import Asked, Bench
from benchmarks.speculation.prompts import categories, default_data, workloads
from benchmarks.speculation.table import control_table, speedup_table
from netgain.errors import NetgainError, UsageError

PEERS_SHARE = 0.4  # of the minutes, starts of the servers included
SHOWN = (
    "speedup_copy_c1",
    "speedup_copy_c1_low",
    "speedup_copy_c1_high",
    "categories_above_1_c1",
    "worst_goodput_ratio",
    "worst_goodput_ratio_low",
    "worst_goodput_ratio_high",
    "worst_goodput_cell",
    "control_losses",
    "token_mismatches",
    "requests_compared",
    "trained_draft_position0_acceptance",
    "trained_draft_position0_acceptance_here",
)


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="for all cells together")
    parser.add_argument("--draft", type=Path, nargs="+", default=[], metavar="FOLDER", help="trained drafts to measure")
    parser.add_argument("--data", type=Path, default=default_data(), metavar="FILE", help="Spec-Bench's questions")
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="auto", help="how the model's weights are kept (engine.model.dtype)")
    parser.add_argument("--k", type=int, default=4, help="drafts per step, at most (suffix: twice that)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="answers to Spec-Bench's questions")
    parser.add_argument(
        "--control-tokens", type=int, default=48, metavar="N", help="at most, of answers by which the control is judged"
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--peers", action="store_true", help="and vLLM's CPU build, in a part of the minutes")
    parser.add_argument("--fresh", action="store_true", help="forget the rounds kept beside FILE")
    given = parser.parse_args()
    try:
        if given.minutes <= 0:
            raise UsageError(f"--minutes is {given.minutes:g}; give more than 0")
        asked = Asked(
            model=given.model,
            dtype=given.dtype,
            k=given.k,
            max_tokens=given.max_tokens,
            threads=given.threads,
            drafts=tuple(str(folder.resolve()) for folder in given.draft),
            data=None if given.data is None else str(given.data),
            control_tokens=given.control_tokens,
        )
        losses = asyncio.run(cancelled_by_signals(bench(asked, given)))
    except NetgainError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit("error: interrupted; with --json, what was measured is kept and the same command goes on")
    if losses:
        print(f"error: the control of drafts costs more than {COSTS_AT_MOST:.0%}: {losses} cells", file=sys.stderr)
        sys.exit(1)


async def bench(asked: Asked, given: argparse.Namespace) -> int:
    """Measure, print, write. Returns in how many cells the control loses. Raises UsageError, Unavailable."""
    if asked.data is None:
        print("Spec-Bench's questions were not found (--data): copying only", file=sys.stderr)
    pools = {"speedup": categories(given.data, asked.max_tokens), "control": workloads(asked.control_tokens)}
    ways = proposers([Path(folder) for folder in asked.drafts], asked.k)
    path = None if given.json is None else given.json.with_name(given.json.name + ".rounds.jsonl")
    journal = Journal(path, msgspec.structs.asdict(asked), fresh=given.fresh)
    load_before = psutil.getloadavg()
    bench = Bench(asked, ways, pools, journal)
    with contextlib.closing(bench):
        await bench.run(time.monotonic() + given.minutes * 60.0 * (1.0 - PEERS_SHARE * given.peers))
        info = dict(bench.info)
    found = figures(journal.rounds, tuple(pools["speedup"]), tuple(pools["control"]), tuple(ways))
    found |= trained_draft(asked.drafts, tuple(ways), journal)
    console = Console(width=200)
    console.print(speedup_table(found, tuple(pools["speedup"]), tuple(ways)))
    console.print(control_table(found, tuple(pools["control"]), tuple(ways)))
    context: dict[str, object] = {
        "settings": msgspec.structs.asdict(asked)
        | {
            "drafts": [Path(folder).name for folder in asked.drafts],
            "data": None if asked.data is None else Path(asked.data).name,
        },
        "minutes": given.minutes,
        "rounds": {cell.key: len(journal.of(cell)) for cell in bench.cells},
        "ways": {
            name: {key: Path(str(said)).name if key == "draft" else said for key, said in way.items()}
            for name, way in ways.items()
        },
        "engine": info,
        "peers": {},
        "load_average": {"before": load_before, "after": psutil.getloadavg()},
    }
    if given.peers:  # whose servers may take long: what is measured is written before
        found |= peers.figures({}, tuple(pools["speedup"]))
        _report.write(given.json, found, context, "speculation", shown=SHOWN)
        measured, context["peers"] = await peers.measure(pools["speedup"], asked.k, given.minutes * 60.0 * PEERS_SHARE)
        found |= measured
    _report.write(given.json, found, context, "speculation", shown=SHOWN)
    losses = found["control_losses"]
    return losses if isinstance(losses, int) else 0


def trained_draft(folders: Sequence[str], names: Sequence[str], journal: Journal) -> dict[str, _report.Figure]:
    """Of the first trained draft: what its manifest says of held-out prompts, and what was counted here, one request at a
    time, over all categories but copying."""
    out: dict[str, _report.Figure] = dict.fromkeys(
        ("trained_draft_position0_acceptance", "trained_draft_position0_acceptance_here", "trained_draft_kind")
    )
    trained = [
        (name, manifest_of(Path(folder)))
        for name, folder in zip(names[len(names) - len(folders) :], folders, strict=True)
    ]
    name, manifest = next(((name, found) for name, found in trained if found is not None), (None, None))
    if name is None or manifest is None:
        return out
    here = drafted_alone(journal.rounds, name).acceptance
    return {
        "trained_draft_position0_acceptance": manifest.acceptance[0] if manifest.acceptance else None,
        "trained_draft_position0_acceptance_here": here[0] if here else None,
        "trained_draft_kind": manifest.kind,
    }


if __name__ == "__main__":
    main()
