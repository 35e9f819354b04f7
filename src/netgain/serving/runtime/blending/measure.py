"""What joining chunks does to the answers of a model: its laws and choices beside those of the prompt computed whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.load import LoadedModel
from netgain.serving.model.selective import SelectiveForward
from netgain.serving.runtime.blending.build import chunk_lead
from netgain.serving.runtime.blending.chunks import ChunkKV, compute_alone
from netgain.serving.runtime.blending.join import Placed, join
from netgain.serving.runtime.blending.questions import Kind, Question
from netgain.serving.tiers.blending.selection import Selection

BLOCK_TOKENS = 16
STEP_TOKENS = 512  # of the prefill that is compared with: the engine's default budget


class Answered(NamedTuple):
    """One question under one selection (None: computed whole). Per token of the answer, which is the one that the prompt
    computed whole gets: `kl` = KL(whole || this) in nats, `same_top` whether the likeliest token is the same. `right`: the
    right answer is the likeliest of those offered (None: none are). `recomputed` is a share of chunk tokens times layers,
    `seconds` the time to the logits of the first token, chunks being there."""

    number: int
    kind: Kind
    chance: float
    selection: Selection | None
    kl: list[float]
    same_top: list[float]
    right: bool | None
    recomputed: float
    seconds: float
    prompt_tokens: int


def measure(
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    questions: Sequence[Question],
    selections: Sequence[Selection],
    answer_tokens: int,
    tell: Callable[[float], None] = lambda share: None,
) -> Iterator[Answered]:
    """Every question computed whole first, then under each selection, in turns, so that a change of the machine's speed meets
    all alike. Raises ValueError for a prompt that does not fit the model's context."""
    decoder, forward = loaded.model, SelectiveForward(loaded.model)
    lead = chunk_lead(loaded.config)
    known: dict[tuple[int, ...], ChunkKV] = {}
    for number, question in enumerate(questions):
        prompt, spans = _tokens(loaded, question)
        if len(prompt) + answer_tokens > loaded.config.context:
            raise ValueError(f"question {number + 1} has {len(prompt)} tokens, the context is {loaded.config.context}")
        blocks = -(-(len(prompt) + answer_tokens) // BLOCK_TOKENS)
        kv = PagedKV(loaded.config, blocks, BLOCK_TOKENS, kv_dtype, decoder.device)
        table = torch.arange(blocks, dtype=torch.int32)
        picks = _picks(loaded, question)
        answer, laws, seconds = _whole(loaded, kv, table, prompt, answer_tokens)
        count = sum(end - first for first, end in spans)
        yield Answered(
            number,
            question.kind,
            question.chance,
            None,
            [0.0] * answer_tokens,
            [1.0] * answer_tokens,
            _right(laws[0], picks),
            1.0,
            seconds,
            len(prompt),
        )
        placed = []
        for first, end in spans:
            tokens = tuple(prompt[first:end])
            if tokens not in known:
                known[tokens] = compute_alone(decoder, forward, lead, tokens, kv_dtype, BLOCK_TOKENS)
            placed.append(Placed(known[tokens], first))
        for selection in selections:
            started_s = time.perf_counter()
            joined = join(decoder, forward, kv, table, prompt, placed, selection)
            seconds = time.perf_counter() - started_s
            said = [joined.logits.log_softmax(1)]
            if answer_tokens > 1:
                said.append(_forward(loaded, kv, table, answer[:-1], len(prompt)).log_softmax(1))
            theirs = torch.cat(said)
            yield Answered(
                number,
                question.kind,
                question.chance,
                selection,
                (laws.exp() * (laws - theirs)).sum(1).clamp_min(0.0).tolist(),
                (laws.argmax(1) == theirs.argmax(1)).double().tolist(),
                _right(theirs[0], picks),
                joined.recomputed / max(1, count),
                seconds,
                len(prompt),
            )
        known.clear()  # generated chunks do not come twice
        tell((number + 1) / len(questions))


def _tokens(loaded: LoadedModel, question: Question) -> tuple[list[int], list[tuple[int, int]]]:
    encode = loaded.tokenizer.encode
    prompt, spans = encode(question.opening, start=True), []
    for chunk in question.chunks:
        tokens = encode(chunk)
        spans.append((len(prompt), len(prompt) + len(tokens)))
        prompt += tokens
    return prompt + encode(question.question), spans


def _picks(loaded: LoadedModel, question: Question) -> list[int]:
    """The first token of each answer; none where they do not tell the answers apart."""
    firsts = [loaded.tokenizer.encode(answer)[0] for answer in question.answers]
    return firsts if len(set(firsts)) == len(firsts) else []


def _right(law: Tensor, picks: Sequence[int]) -> bool | None:
    return int(law[list(picks)].argmax()) == 0 if picks else None


def _whole(
    loaded: LoadedModel, kv: PagedKV, table: Tensor, prompt: Sequence[int], answer_tokens: int
) -> tuple[list[int], Tensor, float]:
    """The greedy answer, the log-probabilities [answer_tokens, vocab] that it was chosen from, and the time to the first."""
    started_s = time.perf_counter()
    for start in range(0, len(prompt), STEP_TOKENS):
        logits = _forward(loaded, kv, table, prompt[start : start + STEP_TOKENS], start, last=True)
    seconds = time.perf_counter() - started_s
    laws, answer = [logits.log_softmax(1)], []
    for place in range(answer_tokens):
        answer.append(int(laws[-1].argmax()))
        if place + 1 < answer_tokens:
            laws.append(_forward(loaded, kv, table, answer[-1:], len(prompt) + place).log_softmax(1))
    return answer, torch.cat(laws), seconds


def _forward(
    loaded: LoadedModel, kv: PagedKV, table: Tensor, tokens: Sequence[int], start: int, last: bool = False
) -> Tensor:
    device = loaded.model.device
    positions = torch.arange(start, start + len(tokens), device=device)
    plan = loaded.model.kernels.plan(positions, torch.zeros_like(positions), table[None], kv.block_tokens)
    rows = torch.arange(len(tokens) - 1 if last else 0, len(tokens), device=device)
    return loaded.model.forward(torch.tensor(list(tokens), device=device), positions, plan, kv, rows)
