"""CPU time and committed tokens of the proposers that need no model, replayed over recorded answers.

python -m benchmarks.proposers RECORDS... [--k K] [--json FILE]. RECORDS are `records.jsonl` files that `netgain decide` left
behind. Every distinct request is replayed once, in the order recorded, for each proposer; the time is that of the whole replay
less one that proposes nothing, in CPU seconds of this process, the least of five passes.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks import _report
from netgain.deciding.experiment.observation import Observation
from netgain.serving.engine.protocols import Ask, Draft, Proposer
from netgain.serving.engine.request import Request
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.replay import ReplayTrace, replay
from netgain.serving.speculation.suffix import SuffixOptions, SuffixProposer

PASSES = 5
Text = tuple[tuple[int, ...], tuple[int, ...]]


class _Silent:
    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [Draft(()) for _ in asks]

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """Nothing is kept."""


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORDS")
    parser.add_argument("--k", type=int, default=8, help="drafts per step, at most")
    given = parser.parse_args()
    figures: dict[str, _report.Figure] = {}
    for path in given.records:
        texts = _texts(path)
        name = path.parent.name
        kinds: dict[str, Callable[[], Proposer]] = {
            "ngram": lambda: NgramProposer(given.k, 2, 4),
            "suffix_own": lambda: SuffixProposer(given.k, SuffixOptions(shared=False)),
            "suffix": lambda: SuffixProposer(given.k),
        }
        idle_s, silent = _replayed(texts, _Silent)
        figures[f"{name}_requests"] = len(texts)
        figures[f"{name}_output_tokens"] = sum(len(output) for _, output in texts)
        for kind, build in kinds.items():
            spent_s, traces = _replayed(texts, build)
            steps = sum(len(trace.steps) for trace in traces)
            drafted = sum(step.drafted for trace in traces for step in trace.steps)
            indexed = sum(len(prompt) + len(output) for prompt, output in texts)
            each_s = max(0.0, spent_s - idle_s * steps / max(1, sum(len(trace.steps) for trace in silent)))
            figures[f"{name}_{kind}_us_per_proposed_token"] = each_s / max(1, drafted) * 1e6
            figures[f"{name}_{kind}_us_per_step"] = each_s / max(1, steps) * 1e6
            figures[f"{name}_{kind}_us_per_indexed_token"] = each_s / max(1, indexed) * 1e6
            figures[f"{name}_{kind}_committed_per_step"] = sum(trace.committed for trace in traces) / max(1, steps)
            accepted = sum(step.accepted for trace in traces for step in trace.steps)
            figures[f"{name}_{kind}_accepted_share"] = accepted / drafted if drafted else None
    _report.write(given.json, figures, {"k": given.k}, "proposers")


def _texts(path: Path) -> list[Text]:
    """Prompt and output of every distinct request, in the order recorded."""
    decoder = msgspec.json.Decoder(Observation)
    texts: dict[Text, None] = {}
    for line in path.read_bytes().splitlines():
        server = decoder.decode(line).record.server
        if server is not None and server.prompt_ids and server.output_ids:
            texts[server.prompt_ids, server.output_ids] = None
    return list(texts)


def _replayed(texts: Sequence[Text], build: Callable[[], Proposer]) -> tuple[float, list[ReplayTrace]]:
    least = float("inf")
    traces: list[ReplayTrace] = []
    for _ in range(PASSES):
        proposer = build()
        began_s = time.process_time()
        traces = [replay(prompt, output, proposer, len(output) + 1) for prompt, output in texts]
        least = min(least, time.process_time() - began_s)
    return least, traces


if __name__ == "__main__":
    main()
