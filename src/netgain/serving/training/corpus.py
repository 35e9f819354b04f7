"""Replies and their features as batches: texts of like length side by side, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from netgain.serving.training.features import FeatureFile
from netgain.serving.training.replies import Reply

BATCH_TOKENS = 512  # with the padding: small, since many steps teach more in little time than good ones
MOST_TOKENS = 1024  # of one text: a longer one is cut at its beginning
_SORTED_TOGETHER = 64


@dataclass(frozen=True)
class Batch:
    """tokens int64 [texts, places], padded at the end; tapped float32 [texts, places, taps x hidden]. `first` and `end`
    int64 [texts]: a text's reply is tokens first..end-1."""

    tokens: Tensor
    tapped: Tensor
    first: Tensor
    end: Tensor

    def places(self, ahead: int, known: int = 0) -> Tensor:
        """bool [texts, places]: from where the next `ahead` tokens all belong to the reply, of which `known` stand already."""
        place = torch.arange(self.tokens.shape[1])
        return (place >= self.first[:, None] + known - 1) & (place + ahead < self.end[:, None]) & (place >= 0)


class Corpus:
    """The replies with their features. Held-out ones are in no epoch."""

    def __init__(self, replies: Sequence[Reply], features: FeatureFile) -> None:
        self._replies, self._features = replies, features
        usable = [place for place, reply in enumerate(replies) if len(reply.tokens) > 1]
        self._taught = [place for place in usable if not replies[place].held_out]
        self._held = [place for place in usable if replies[place].held_out]

    @property
    def taught_tokens(self) -> int:
        return sum(len(self._replies[place].tokens) for place in self._taught)

    def scale(self, hidden: int) -> float:
        """The root mean square of what the last tap gives, over a few texts."""
        some = (self._taught or self._held)[:8]
        last = torch.cat([self._features.rows(place)[:, -hidden:] for place in some]).float()
        return float(last.pow(2).mean().sqrt())

    def epoch(self, seed: int, number: int) -> list[list[int]]:
        """Batches, as places of replies."""
        order = random.Random(f"{seed}:{number}")
        places = self._taught.copy()
        order.shuffle(places)
        batches: list[list[int]] = []
        for start in range(0, len(places), _SORTED_TOGETHER):
            batches += self._packed(places[start : start + _SORTED_TOGETHER])
        order.shuffle(batches)
        return batches

    def held_out(self, most_tokens: int | None = None) -> list[list[int]]:
        """Batches of held-out replies, of about `most_tokens` at most."""
        chosen, tokens = [], 0
        for place in self._held:
            if most_tokens is not None and tokens >= most_tokens:
                break
            chosen.append(place)
            tokens += len(self._replies[place].tokens)
        return self._packed(chosen)

    def batch(self, places: Sequence[int]) -> Batch:
        kept = [(place, max(0, len(self._replies[place].text) - MOST_TOKENS)) for place in places]
        texts = [torch.tensor(self._replies[place].text[cut:]) for place, cut in kept]
        rows = [self._features.rows(place, cut).float() for place, cut in kept]
        return Batch(
            tokens=torch.nn.utils.rnn.pad_sequence(texts, batch_first=True),
            tapped=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
            first=torch.tensor([max(0, len(self._replies[place].prompt) - cut) for place, cut in kept]),
            end=torch.tensor([len(text) for text in texts]),
        )

    def _packed(self, places: Sequence[int]) -> list[list[int]]:
        """Texts of like length together, as many as fill BATCH_TOKENS with their padding."""
        batches: list[list[int]] = []
        for place in sorted(places, key=lambda one: (len(self._replies[one].text), one)):
            length = min(len(self._replies[place].text), MOST_TOKENS)
            if not batches or (len(batches[-1]) + 1) * length > BATCH_TOKENS:
                batches.append([])
            batches[-1].append(place)
        return batches


def most_frequent(replies: Sequence[Reply], always: Sequence[int], count: int, vocab: int) -> tuple[Tensor, float]:
    """int64 [min(count, vocab)] ascending: `always`, then what the replies say most often, then what the prompts do, then the
    lowest ids, which a vocabulary gives to its most frequent pieces. With it the share of what held-out replies say that is
    among them."""
    said = Counter(token for reply in replies if not reply.held_out for token in reply.tokens)
    read = Counter(token for reply in replies if not reply.held_out for token in reply.prompt)
    ranked = dict.fromkeys([*always, *_ranked(said), *_ranked(read), *range(vocab)])
    chosen = set(list(ranked)[: max(count, len(always))])
    held = [token for reply in replies if reply.held_out for token in reply.tokens]
    coverage = sum(token in chosen for token in held) / len(held) if held else 0.0
    return torch.tensor(sorted(chosen)), coverage


def _ranked(counts: Counter[int]) -> list[int]:
    return sorted(counts, key=lambda token: (-counts[token], token))
