"""What every way to draft is worth by domain and load, and whether the control of drafts ever costs.

python -m benchmarks.speculation [--json FILE] [--minutes N] [--draft FOLDER ...] [--data FILE] [--peers]. Engines of one
process, one for every arm, go through the same prompts in slices of a tenth of a second each, so that what disturbs the
machine disturbs them alike. `speedup_{category}_{proposer}_c{N}` (and `_low`, `_high`: 95 % over rounds): time of no
speculation over time with drafts (up to K of them, no control), N requests at once, prompts included;
`tokens_per_iteration_...`: tokens committed per decode step; `overhead_...`: how much longer such a step takes than one
without speculation. Categories: Spec-Bench's six groups (first turns) and `copy`, the bundled workload of editing tasks;
`speedup_{copy}_c1` is that of the best proposer, `categories_above_1_c1` counts the others that are faster with the whole
interval of theirs. `worst_goodput_ratio`: the lowest ratio, over bundled workloads, proposers and {1, 2, 4, 8, 16, 32}
requests at once, of the time without speculation over that under the goodput control, with its interval; exit code 1 where a
whole interval lies beyond 3 %; `goodput_beyond` names all cells whose median does. `none_c1_over_peers`: one stream without
speculation, 128 tokens in and out, over the same of the peers benchmark (see reference.py). `token_mismatches`: requests
whose tokens differ from those without speculation, of `requests_compared`. Cells run in the order of what they tell until the
minutes are over; what did not run is null, and what all of them would take is said before. --categories, --workloads and
--control leave cells and arms out of a run, not out of the figures. With --json every round is kept beside it, and the same
command goes on where the last one stopped (its minutes are counted anew).
With --peers, vLLM's CPU build gets a part of the minutes, or --peers-minutes of its own.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil
from rich.console import Console

from benchmarks import _report
from benchmarks._signals import cancelled_by_signals
from benchmarks.speculation import peers, reference
from benchmarks.speculation.arms import manifest_of, proposers
from benchmarks.speculation.cells import Journal
from benchmarks.speculation.figures import COSTS_AT_MOST, drafted_alone, figures
from benchmarks.speculation.measuring import Asked, Bench
from benchmarks.speculation.prompts import categories, default_data, plain, waves, workloads
from benchmarks.speculation.table import control_table, speedup_table
from netgain.errors import NetgainError, UsageError

Kept = TypeVar("Kept")
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
    "goodput_cells_beyond",
    "goodput_beyond",
    "none_decode_ms_c1",
    "none_c1_over_peers",
    "none_c1_over_peers_missing",
    "token_mismatches",
    "requests_compared",
    "trained_draft_position0_acceptance",
    "trained_draft_position0_acceptance_here",
)


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, metavar="N", help="for all cells together")
    drafts = "a trained draft to measure; may be given several times"
    parser.add_argument("--draft", type=Path, nargs="+", action="extend", default=[], metavar="FOLDER", help=drafts)
    parser.add_argument("--data", type=Path, default=default_data(), metavar="FILE", help="Spec-Bench's questions")
    parser.add_argument("--model", default="default")
    parser.add_argument("--dtype", default="auto", help="how the model's weights are kept (engine.model.dtype)")
    parser.add_argument("--k", type=int, default=4, help="drafts per step, at most (suffix: twice that)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="answers to Spec-Bench's questions")
    parser.add_argument(
        "--control-tokens", type=int, default=48, metavar="N", help="at most, of answers by which the control is judged"
    )
    parser.add_argument(
        "--wave-tokens",
        type=int,
        metavar="N",
        help="at most, of answers where several are asked at once (--max-tokens)",
    )
    parser.add_argument("--categories", nargs="*", metavar="NAME", help="to run in this run; none given: none")
    parser.add_argument("--workloads", nargs="*", metavar="NAME", help="for the control in this run; none given: none")
    parser.add_argument("--control", nargs="+", metavar="NAME", help="drafts to try under the control (all)")
    parser.add_argument(
        "--peers-result", type=Path, metavar="FILE", help="of the peers benchmark (the newest kept one)"
    )
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--peers", action="store_true", help="and vLLM's CPU build, in a part of the minutes")
    parser.add_argument(
        "--peers-minutes", type=float, metavar="N", help="for that, on top of --minutes (0 is allowed then)"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the rounds kept beside FILE")
    given = parser.parse_args()
    try:
        if given.peers_minutes is not None and not given.peers:
            raise UsageError("--peers-minutes is given without --peers")
        if given.minutes < 0 or (given.minutes == 0 and given.peers_minutes is None):
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
            wave_tokens=given.wave_tokens or given.max_tokens,
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
    asked_here = {
        "plain": plain(),
        "speedup": chosen(pools["speedup"], given.categories, "category"),
        "control": chosen(pools["control"], given.workloads, "workload"),
    }
    asked_here["waves"] = waves(asked_here["speedup"], asked.wave_tokens)
    ways = proposers([Path(folder) for folder in asked.drafts], asked.k)
    controlled = chosen(ways, given.control, "proposer")
    path = None if given.json is None else given.json.with_name(given.json.name + ".rounds.jsonl")
    journal = Journal(path, msgspec.structs.asdict(asked), fresh=given.fresh)
    load_before = psutil.getloadavg()
    bench = Bench(asked, ways, asked_here, journal, controlled=tuple(controlled))
    expected = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in bench.expected.items())
    whole = sum(bench.expected.values()) / 60
    print(
        f"about {whole:.0f} minutes to the rounds of every cell ({expected}), starts on top; {given.minutes:g} are given"
    )
    peers_s = given.minutes * 60.0 * PEERS_SHARE if given.peers_minutes is None else given.peers_minutes * 60.0
    own_s = given.minutes * 60.0 - peers_s * (given.peers and given.peers_minutes is None)
    with contextlib.closing(bench):
        await bench.run(time.monotonic() + own_s)
        info = dict(bench.info) or engine_of(given.json)
    found = figures(journal.rounds, tuple(pools["speedup"]), tuple(pools["control"]), tuple(ways))
    found |= trained_draft(asked.drafts, tuple(ways), journal)
    found |= reference.figures(journal.rounds, asked.model, asked.dtype, given.peers_result)
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
        measured, context["peers"] = await peers.measure(asked_here["speedup"], asked.k, peers_s)
        found |= measured
    _report.write(given.json, found, context, "speculation", shown=SHOWN)
    losses = found["control_losses"]
    return losses if isinstance(losses, int) else 0


def engine_of(path: Path | None) -> dict[str, object]:
    """What the run before says of its engine, where this one started none: its settings are the same."""
    try:
        kept = json.loads(path.read_bytes())["_context"]["engine"] if path is not None else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return kept if isinstance(kept, dict) else {}


def chosen(known: Mapping[str, Kept], names: Sequence[str] | None, what: str) -> dict[str, Kept]:
    """Those named; all where None are. Raises UsageError for a name that is none."""
    for name in names or ():
        if name not in known:
            raise UsageError(f"{name!r} is no {what}; known are {', '.join(known)}")
    return {name: kept for name, kept in known.items() if names is None or name in names}


def trained_draft(folders: Sequence[str], names: Sequence[str], journal: Journal) -> dict[str, _report.Figure]:
    """Of the first trained draft, and of each by its name: what its manifest says of held-out prompts, and what was counted
    here, one request at a time, over all categories but copying."""
    out: dict[str, _report.Figure] = dict.fromkeys(
        ("trained_draft_position0_acceptance", "trained_draft_position0_acceptance_here", "trained_draft_kind")
    )
    trained = [
        (name, manifest_of(Path(folder)))
        for name, folder in zip(names[len(names) - len(folders) :], folders, strict=True)
    ]
    for name, manifest in trained[::-1]:  # the first one is told last
        if manifest is None:
            continue
        here = drafted_alone(journal.rounds, name).acceptance
        told: dict[str, _report.Figure] = {
            "trained_draft_position0_acceptance": manifest.acceptance[0] if manifest.acceptance else None,
            "trained_draft_position0_acceptance_here": here[0] if here else None,
        }
        out |= told | {f"{key}_{name}": value for key, value in told.items()} | {"trained_draft_kind": manifest.kind}
    return out


if __name__ == "__main__":
    main()
