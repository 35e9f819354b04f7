"""`netgain decide` on a real vLLM (the CPU build that `python -m benchmarks.peers --install` installs): n-gram speculation on
copying and on chat prompts, and whether vLLM's own counters agree with the client.

python -m benchmarks.decide_vllm [--json FILE] [--keep DIR] [--only edit|chat]. For each workload the quick form of
`netgain decide --engine vllm --workload WORKLOAD --quick --technique ngram` runs once. `WORKLOAD_counters_agree`: 1 if no counter
of vLLM differs from what the client received by more than the two may; every pair of figures is in the file
(`WORKLOAD_ARM_FIGURE_server` and `_client`). The verdicts stand in the file's context.
"""

import os
import tempfile
from pathlib import Path

import msgspec

from benchmarks import _report
from benchmarks.decide import figures_of
from benchmarks.peers import install, programs
from netgain.deciding.decide.loop import decide
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.report.document import document_of
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.report.write import write_report

WORKLOADS = ("edit", "chat")
FLAGS = ("--dtype", "bfloat16", "--max-model-len", "2048", "--served-model-name", "m", "--enforce-eager")
START_S = 900.0


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--only", choices=WORKLOADS, help="one workload")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the reports there")
    options = parser.parse_args()
    if not (install.folder() / "vllm/ready").is_file():
        raise SystemExit("vLLM is not installed: run `python -m benchmarks.peers --install` first")
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.keep or Path(temporary)
        figures: dict[str, _report.Figure] = {}
        context: dict[str, object] = {"engine": f"{install.VLLM} {' '.join(FLAGS)}", "form": "quick", "concurrency": 1}
        for workload in WORKLOADS if options.only is None else (options.only,):
            outcome = decide(settings_for(workload, folder / workload))
            print(write_report(outcome, folder / workload))
            figures |= figures_of(workload, outcome) | counted(workload, outcome)
            context[f"{workload}_command"] = (
                f"netgain decide --engine vllm --workload {workload} --quick --technique ngram"
            )
            document = document_of(outcome)
            context[f"{workload}_verdict_document"] = None if document is None else msgspec.to_builtins(document)
    _report.write(options.json, figures, context, "netgain decide on vLLM")


def settings_for(workload: str, folder: Path) -> Settings:
    core = max(os.sched_getaffinity(0))  # the others are for the client
    starting = Starting(
        python=str(install.folder() / "vllm/bin/python"), flags=FLAGS, environment=programs.vllm_environment([core])
    )
    return Settings(
        output=folder,
        engine="vllm",
        model=str(install.hf_model()),
        workload=workload,
        quick=True,
        techniques=("ngram",),
        starting=starting,
        start_timeout_s=START_S,
    )


def counted(workload: str, outcome: Outcome) -> dict[str, _report.Figure]:
    """Every figure that both know, and whether all of them agree (None: nothing to compare)."""
    known = [row.agree for row in outcome.counted if row.agree is not None]
    found: dict[str, _report.Figure] = {f"{workload}_counters_agree": all(known) if known else None}
    for row in outcome.counted:
        found[f"{workload}_{row.arm}_{row.figure}_server"] = row.server
        found[f"{workload}_{row.arm}_{row.figure}_client"] = row.client
    return found


if __name__ == "__main__":
    main()
