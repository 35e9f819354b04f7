"""What joining chunks saves and loses, by ratio, on real paragraphs with their questions.

python -m benchmarks.blending XQUAD [--count N] [--chunks K] [--model M] [--json FILE]. XQUAD is a file in SQuAD's form; each
prompt is the paragraph that a question is about among others, in drawn order. `ttft_ratio_{selection}`: time to the logits
of the first token over that of a whole prefill, in turns, chunks being there; `kl_{selection}` (and `_high`, the worse end of
its 90 % interval over prompts): nats per token of the answer that the whole prompt gets; `same_{selection}`: the share of
its tokens whose likeliest stays the same; `recomputed_{selection}`: of the chunks' tokens times layers.
"""

import json
import random
import statistics
from pathlib import Path

import torch

from benchmarks import _report
from netgain.measuring.quality.estimates import mean_over_texts
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.runtime.blending.measure import measure
from netgain.serving.runtime.blending.questions import Question
from netgain.serving.tiers.blending.selection import Deviating, First, Naive, Selection

SELECTIONS: dict[str, Selection] = {
    "naive": Naive(),
    "first_16": First(16),
    "first_32": First(32),
    **{f"deviating_{percent}": Deviating(percent / 100) for percent in (5, 10, 20, 40, 100)},
}
ANSWER_TOKENS = 8


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("xquad", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--model", default="default")
    options = parser.parse_args()
    kernels = load_kernels("auto", torch.get_num_threads())
    torch.set_num_threads(1 if isinstance(kernels, CompiledKernels) else torch.get_num_threads())
    loaded = load_model(options.model, "auto", kernels)
    questions = read(options.xquad, options.count, options.chunks)
    answered = list(measure(loaded, torch.bfloat16, questions, list(SELECTIONS.values()), ANSWER_TOKENS))
    whole = {one.number: one for one in answered if one.selection is None}
    figures: dict[str, _report.Figure] = {
        "prompts": len(whole),
        "chunks": options.chunks,
        "prompt_tokens_median": statistics.median(one.prompt_tokens for one in whole.values()),
    }
    for name, selection in SELECTIONS.items():
        mine = [one for one in answered if one.selection == selection]
        kl = mean_over_texts([one.kl for one in mine], 0.9)
        assert kl is not None
        figures[f"ttft_ratio_{name}"] = statistics.median(one.seconds / whole[one.number].seconds for one in mine)
        figures[f"kl_{name}"], figures[f"kl_{name}_high"] = kl.value, kl.high
        figures[f"same_{name}"] = statistics.fmean(value for one in mine for value in one.same_top)
        figures[f"recomputed_{name}"] = statistics.fmean(one.recomputed for one in mine)
    _report.write(options.json, figures, {"model": options.model, "kernels": kernels.name}, title="blending")


def read(path: Path, count: int, chunks: int, seed: int = 0) -> list[Question]:
    """`count` questions, each over its own paragraph and `chunks` - 1 others."""
    source = random.Random(seed)
    paragraphs = [paragraph for article in json.loads(path.read_bytes())["data"] for paragraph in article["paragraphs"]]
    found = []
    for paragraph in source.sample(paragraphs, min(count, len(paragraphs))):
        others = source.sample([one for one in paragraphs if one is not paragraph], chunks - 1)
        texts = [f"{one['context']}\n\n" for one in (paragraph, *others)]
        source.shuffle(texts)
        asked = source.choice(paragraph["qas"])["question"]
        found.append(Question(chunks=tuple(texts), question=f"Question: {asked}\nAnswer:"))
    return found


if __name__ == "__main__":
    main()
