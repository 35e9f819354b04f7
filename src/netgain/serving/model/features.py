"""What the target thought at each position, kept beside its KV so that heads can draft from it: one more plane of a block."""

from __future__ import annotations

import torch
from torch import Tensor

from netgain.serving.model.kernels.protocol import AttentionPlan, Kernels


class FeaturePlane:
    """bfloat16 [blocks, block_tokens, width], addressed by the block tables of the target. What its taps gave at a position is
    written when the position is computed, so a prefix found in the cache has it, too; what a head makes of it is worked out
    when that drafts."""

    def __init__(self, blocks: int, block_tokens: int, width: int, device: torch.device, kernels: Kernels) -> None:
        self.width = width
        self._kernels = kernels
        self._block_tokens = block_tokens
        self._plane = torch.zeros(blocks, block_tokens, width, dtype=torch.bfloat16, device=device)

    def raw(self) -> Tensor:
        """The same memory as bytes: uint8 [1, blocks, bytes of a block]."""
        return self._plane.view(torch.uint8).flatten(1)[None]

    @staticmethod
    def bytes_per_token(width: int) -> int:
        return width * torch.bfloat16.itemsize

    def write(self, tapped: Tensor, plan: AttentionPlan) -> None:
        """What the taps gave, float32 [rows, width], of the plan's rows."""
        self._kernels.store_rows(tapped, self._plane, plan)

    def before(self, positions: Tensor, segment_of_row: Tensor, tables: Tensor) -> Tensor:
        """Of the positions before these (int64 [rows], tables int32 [segments, blocks], as Kernels.plan has them), float32
        [rows, width]; zeros before the first."""
        earlier = (positions - 1).clamp(min=0)
        found = self._plane[self._places(earlier, segment_of_row, tables)].float()
        return found.masked_fill_((positions == 0)[:, None], 0.0)

    def _places(self, positions: Tensor, segment_of_row: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
        blocks = tables[segment_of_row, positions // self._block_tokens].long()
        return blocks, positions % self._block_tokens
