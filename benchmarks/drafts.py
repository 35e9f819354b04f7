"""What a trained draft is worth and costs: acceptance by category of prompt, speed beside n-gram lookup, CPU time of one draft.

python -m benchmarks.drafts DRAFT [--model MODEL] [--prompts N] [--tokens N] [--json FILE]. Categories are those of the bundled
training prompts, of which only held-out ones are asked, and the bundled workload chat, which no draft has seen. Speed is CPU
seconds per token of one request at a time, answered by every arm in turn in one process, so that other work on the machine hits
all arms alike; every arm must say the same tokens.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import _report
from netgain.cli.draft import chat_prompts
from netgain.ledger.stage import Stage
from netgain.serving.engine.batch import Batch, Segment
from netgain.serving.engine.protocols import Executor
from netgain.serving.engine.request import SamplingParams
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.drafts.manifest import Manifest, read_manifest
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.drafts import DraftFiles, load_draft
from netgain.serving.runtime.llm import LLM, Completion
from netgain.serving.runtime.torch_executor import TorchExecutor
from netgain.serving.speculation.ngram import NgramProposer
from netgain.serving.speculation.replay import replay
from netgain.serving.training.prompts import Prompt, bundled_by_kind, encoded

ROUNDS = 20
CONTEXT = 200  # tokens before the step that is timed
BLOCK = 16


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=int, default=16, help="of the workload chat, for speed")
    parser.add_argument("--tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--note", help="what stood in the way of a quiet measurement")
    given = parser.parse_args()
    manifest = read_manifest(given.draft)
    figures: dict[str, _report.Figure] = {}
    figures |= _trained(manifest)
    figures |= _costs(given.model, given.draft, manifest)
    figures |= _speeds(given.model, given.draft, given.prompts, given.tokens)
    figures |= _categories(given.model, given.draft, manifest, given.tokens)
    context = {"draft": given.draft.name, "recipe": manifest.recipe, "note": given.note}
    _report.write(given.json, figures, context, f"{manifest.kind} draft for {manifest.target_name}")


def _trained(manifest: Manifest) -> dict[str, _report.Figure]:
    figures: dict[str, _report.Figure] = {"data": manifest.data, "held_out_places": manifest.held_out}
    for place, share in enumerate(manifest.acceptance or ()):
        figures[f"held_out_acceptance_{place}"] = share
    return figures


def _costs(model: str, draft: Path, manifest: Manifest) -> dict[str, _report.Figure]:
    """CPU milliseconds, one thread: a step of the target alone and with what a draft wants of it, and one draft."""
    kernels = load_kernels("auto", 1)
    torch.set_num_threads(1)
    files = DraftFiles(str(draft), manifest)
    plain, tapped = load_model(model, "auto", kernels), load_model(model, "auto", kernels, taps=files.taps)
    blocks = CONTEXT // BLOCK + 2
    timed: dict[str, Callable[[], object]] = {}
    alone = TorchExecutor(plain.model, PagedKV(plain.config, blocks, BLOCK, torch.bfloat16), kernels)
    for rows in (1, 2, 3):
        timed[f"target_step_{rows}_ms"] = _step(alone, rows)
    for dtype in ("bf16", "int8", "int4"):
        drafts = load_draft(files, dtype, tapped, kernels, torch.bfloat16, BLOCK).over(blocks, 512)
        timed[f"draft_{dtype}_ms"] = _step(drafts.proposer.executor, 1)
        kv = PagedKV(tapped.config, blocks, BLOCK, torch.bfloat16)
        seen = TorchExecutor(tapped.model, kv, kernels, drafts.features)
        for rows in (1, 2, 3) if dtype == "int4" else ():
            timed[f"target_step_{rows}_tapped_ms"] = _step(seen, rows)
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(ROUNDS):
        for name, call in timed.items():
            timed["target_step_1_ms"]()  # which empties the caches, as between two drafts
            began_s = time.process_time()
            call()
            taken[name].append((time.process_time() - began_s) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def _step(executor: Executor, rows: int) -> Callable[[], object]:
    segment = Segment(
        request_id="a",
        stage=Stage.DECODE,
        tokens=tuple(range(1000, 1000 + rows)),
        start=CONTEXT,
        block_table=tuple(range(CONTEXT // BLOCK + 2)),
        rows=rows,
        drafts=0,
        choice=0,
        laws=False,
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
    )
    return lambda: asyncio.run(executor.execute(Batch((segment,))))


def _speeds(model: str, draft: Path, count: int, tokens: int) -> dict[str, _report.Figure]:
    arms: dict[str, dict[str, object]] = {
        "none": {"method": "none"},
        "ngram_k2": {"method": "ngram", "k": 2},
        **{f"draft_{dtype}_k1": _by(draft, 1, dtype) for dtype in ("int8", "int4")},
    }
    engines = {name: LLM(_config(model, speculation)) for name, speculation in arms.items()}
    prompts = _encoded(engines["none"], chat_prompts()[:count])
    spent: dict[str, list[float]] = {name: [] for name in arms}
    said: dict[str, list[Completion]] = {name: [] for name in arms}
    for prompt in prompts:
        for name, llm in engines.items():
            began_s = time.process_time()
            llm.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0))
            first_s = time.process_time()
            (answer,) = llm.generate([prompt], SamplingParams(max_tokens=tokens, temperature=0.0))
            more = len(answer.output_ids) - 1
            if more > 0:
                spent[name].append((time.process_time() - 2 * first_s + began_s) / more)
                said[name].append(answer)
    figures: dict[str, _report.Figure] = {"chat_prompts": len(prompts)}
    for name, llm in engines.items():
        llm.close()
        if [one.output_ids for one in said[name]] != [one.output_ids for one in said["none"]]:
            raise RuntimeError(f"arm {name} says other tokens than no speculation does")
        figures[f"{name}_cpu_ms_per_token"] = statistics.median(spent[name]) * 1e3
        figures[f"{name}_committed_per_step"] = _committed(said[name])
        figures[f"{name}_speedup"] = statistics.median(
            base / own for base, own in zip(spent["none"], spent[name], strict=True)
        )
    return figures


def _categories(model: str, draft: Path, manifest: Manifest, tokens: int) -> dict[str, _report.Figure]:
    """Acceptance by position with as many drafts as it was trained for, greedy and at temperature 0.7, 8 requests at a time."""
    figures: dict[str, _report.Figure] = {}
    with LLM(_config(model, _by(draft, manifest.positions, "int8"))) as llm:
        asked: dict[str, Sequence[Prompt]] = {
            kind: [prompt for prompt in prompts if prompt.held_out] for kind, prompts in bundled_by_kind().items()
        }
        for kind, prompts in {"chat": chat_prompts(), **asked}.items():
            for name, temperature in (("", 0.0), ("_sampled", 0.7)):
                sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=1)
                answers = llm.generate(_encoded(llm, prompts), sampling)
                counts = [answer.trace.drafts for answer in answers]
                for place in range(manifest.positions):
                    drafted = sum(one.drafted[place] for one in counts if place < len(one.drafted))
                    accepted = sum(one.accepted[place] for one in counts if place < len(one.accepted))
                    figures[f"{kind}{name}_acceptance_{place}"] = accepted / drafted if drafted else None
                figures[f"{kind}{name}_committed_per_step"] = _committed(answers)
                traces = [
                    replay(answer.prompt_ids, answer.output_ids, NgramProposer(4, 2, 4), tokens) for answer in answers
                ]
                steps = sum(len(trace.steps) for trace in traces)
                figures[f"{kind}{name}_ngram_committed_per_step"] = (
                    sum(t.committed for t in traces) / steps if steps else None
                )
    return figures


def _by(draft: Path, k: int, dtype: str) -> dict[str, object]:
    return {"method": "draft", "draft": str(draft), "k": k, "draft_dtype": dtype}


def _config(model: str, speculation: dict[str, object]) -> EngineConfig:
    return EngineConfig.model_validate(
        {
            "model": {"source": model, "threads": 1},
            "cache": {"kv_tokens": 8192, "prefix_caching": False},
            "scheduler": {"max_running": 8},
            "speculation": speculation,
            "step_cost": {"refresh": "never"},
        }
    )


def _encoded(llm: LLM, prompts: Sequence[Prompt]) -> list[list[int]]:
    loaded = llm.built.loaded
    return [encoded(prompt, loaded.tokenizer, loaded.template) for prompt in prompts]


def _committed(answers: Sequence[Completion]) -> float | None:
    """Tokens behind the first one per decode step; a step commits what it accepted and one more."""
    tokens = sum(len(answer.output_ids) - 1 for answer in answers)
    steps = tokens - sum(sum(answer.trace.drafts.accepted) for answer in answers)
    return tokens / steps if steps > 0 else None


if __name__ == "__main__":
    main()
