"""How far a student is from the target: the loss that it learns by, and how many of its drafts would have stood."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from netgain.serving.training.corpus import Batch
from netgain.serving.training.students import Student, Target

FADING = 0.8  # weight of each further draft in the loss: a later one counts only if those before it stood


def spoken(student: Student, target: Target, batch: Batch, passes: int) -> list[Tensor]:
    """See modules.py."""
    embedded = target.embedding[batch.tokens]
    return student.module(embedded, batch.tapped, passes)


def loss(student: Student, target: Target, batch: Batch, passes: int) -> tuple[Tensor, list[float]]:
    """The mean over all places of a reply of KL(target || student), nats, over the tokens that the student can say, summed
    over passes with their weights; and each pass's own mean."""
    hidden = target.config.hidden
    total = torch.zeros(())
    each = []
    known = batch.places(1)  # the law at a place serves every pass that says the token behind it
    with torch.no_grad():
        laws = target.law(batch.tapped[..., -hidden:][known]).log_softmax(-1)
    row = torch.zeros(known.shape, dtype=torch.int64)
    row[known] = torch.arange(len(laws))
    for turn, said in enumerate(spoken(student, target, batch, passes)):
        places = batch.places(turn + 1)
        if not bool(places.any()):
            break
        law = laws if not turn else laws[torch.roll(row, -turn, dims=1)[places]]
        found = student.module.head(said[places]).log_softmax(-1)
        divergence = torch.nn.functional.kl_div(found, law, reduction="batchmean", log_target=True)
        total = total + FADING**turn * divergence
        each.append(float(divergence.detach()))
    return total, each


@torch.no_grad()
def acceptance(student: Student, target: Target, batches: Iterable[Batch]) -> tuple[tuple[float, ...] | None, int]:
    """Over greedy replies: at which share of the places that have room for all drafts the first i + 1 all stood, and how
    many places there were (None: none). Drafting is greedy, and features that the target has not computed are guessed, as
    in the engine."""
    stood, count = torch.zeros(student.positions, dtype=torch.int64), 0
    ids = target.ids
    for batch in batches:
        places = batch.places(student.positions, known=1)
        count += int(places.sum())
        alive = torch.ones(int(places.sum()), dtype=torch.bool)
        for turn, said in enumerate(spoken(student, target, batch, student.positions)):
            if target.every is None:
                chosen = ids[student.module.head(said[places]).argmax(-1)]
            else:
                chosen = (said[places] @ target.every.T).argmax(-1)
            alive &= chosen == torch.roll(batch.tokens, -(turn + 1), dims=1)[places]
            stood[turn] += int(alive.sum())
    return (tuple((stood / count).tolist()) if count else None), count
