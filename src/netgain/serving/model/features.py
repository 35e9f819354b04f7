"""What the target thought at each position, kept beside its KV so that heads can draft from it: one more plane of a block."""

from __future__ import annotations

import torch
from torch import Tensor


class FeaturePlane:
    """bfloat16 [blocks, block_tokens, width], addressed by the block tables of the target. The feature of a position is
    written when the position is computed, so a prefix found in the cache has its features, too."""

    def __init__(self, blocks: int, block_tokens: int, width: int, device: torch.device) -> None:
        self.width = width
        self._block_tokens = block_tokens
        self._plane = torch.zeros(blocks, block_tokens, width, dtype=torch.bfloat16, device=device)

    def raw(self) -> Tensor:
        """The same memory as bytes: uint8 [1, blocks, bytes of a block]."""
        return self._plane.view(torch.uint8).flatten(1)[None]

    @staticmethod
    def bytes_per_token(width: int) -> int:
        return width * torch.bfloat16.itemsize

    def write(self, features: Tensor, positions: Tensor, segment_of_row: Tensor, tables: Tensor) -> None:
        """features [rows, width] of `positions` int64 [rows]; tables int32 [segments, blocks], as Kernels.plan has them."""
        self._plane[self._places(positions, segment_of_row, tables)] = features.to(torch.bfloat16)

    def before(self, positions: Tensor, segment_of_row: Tensor, tables: Tensor) -> Tensor:
        """The features of the positions before these, float32 [rows, width]; zeros before the first."""
        earlier = (positions - 1).clamp(min=0)
        found = self._plane[self._places(earlier, segment_of_row, tables)].float()
        return found.masked_fill_((positions == 0)[:, None], 0.0)

    def _places(self, positions: Tensor, segment_of_row: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        blocks = tables[segment_of_row, positions // self._block_tokens].long()
        return blocks, positions % self._block_tokens
