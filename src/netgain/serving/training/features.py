"""What the target thought of every token of its replies, computed once by the engine's own forward pass and kept in a file
that is read page by page: for most texts that is less work than computing it again in every epoch, and takes no memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.load import LoadedModel
from netgain.serving.training.replies import Reply

BLOCK_TOKENS = 16
CHUNK = 256  # tokens computed together
_BYTES = 2  # of a bfloat16


class FeatureFile:
    """bfloat16 [tokens of all replies, width], in the order of `replies`; written text by text, so that what a kill leaves
    behind is continued."""

    def __init__(self, path: Path, replies: Sequence[Reply], width: int) -> None:
        self._path, self._replies, self._width = path, replies, width
        lengths = [len(reply.text) for reply in replies]
        self.starts = [0, *np.cumsum(lengths[:-1], dtype=np.int64).tolist()]
        self._rows = sum(lengths)
        self._plane: np.memmap[tuple[int, int], np.dtype[np.uint16]] | None = None

    def fill(self, loaded: LoadedModel, tell: Callable[[float], None]) -> None:
        """Computes what is missing; `loaded` taps the layers whose outputs, side by side, make a row."""
        row_bytes = self._width * _BYTES
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            there = file.tell() // row_bytes
            done = sum(
                start + len(reply.text) <= there for start, reply in zip(self.starts, self._replies, strict=True)
            )
            file.truncate((self.starts[done] if done < len(self.starts) else self._rows) * row_bytes)
            for number, reply in enumerate(self._replies[done:], start=done + 1):
                file.write(text_features(loaded, reply.text).view(torch.uint16).numpy().tobytes())
                tell(number / len(self._replies))
        self._plane = np.memmap(self._path, np.uint16, "r", shape=(self._rows, self._width))

    def rows(self, place: int, first: int = 0) -> Tensor:
        """bfloat16 [tokens, width] of a reply's text, from its token `first` on."""
        assert self._plane is not None, "fill comes first"
        start = self.starts[place]
        part = np.array(self._plane[start + first : start + len(self._replies[place].text)])
        return torch.from_numpy(part).view(torch.bfloat16)


def text_features(loaded: LoadedModel, text: Sequence[int]) -> Tensor:
    """bfloat16 [tokens, taps x hidden] of one text."""
    model = loaded.model
    blocks = -(-len(text) // BLOCK_TOKENS)
    kv = PagedKV(loaded.config, blocks, BLOCK_TOKENS, torch.bfloat16)
    table = torch.arange(blocks, dtype=torch.int32)[None]
    parts = []
    for start in range(0, len(text), CHUNK):
        tokens = torch.tensor(text[start : start + CHUNK])
        positions = torch.arange(start, start + len(tokens))
        plan = model.kernels.plan(positions, torch.zeros(len(tokens), dtype=torch.int64), table, BLOCK_TOKENS)
        tapped = torch.empty(len(tokens), model.tap_width)
        model.forward(tokens, positions, plan, kv, torch.tensor([len(tokens) - 1]), None, tapped)
        parts.append(tapped.to(torch.bfloat16))
    return torch.cat(parts)
