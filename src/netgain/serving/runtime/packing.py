"""Segments laid out as the flat rows that a model computes, in buffers that are kept from step to step."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from netgain.serving.engine.batch import Segment


class PackedRows(NamedTuple):
    """Tensors that share the packer's memory, valid until the next `pack`: int64 [rows], tables int32 [segments, blocks]
    padded with -1. `wanted` are the rows that need logits; of segment i `wanted_of[i]`, its scored ones first."""

    tokens: torch.Tensor
    positions: torch.Tensor
    segment_of_row: torch.Tensor
    tables: torch.Tensor
    wanted: torch.Tensor
    wanted_of: tuple[int, ...]


class Packer:
    """Buffers on the host, which grow to the largest batch seen; on another device the tensors are copies."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._columns = np.empty((4, 64), np.int64)  # tokens, positions, segment of row, wanted rows
        self._tables = np.full((16, 64), -1, np.int32)
        self._written: list[tuple[int, ...]] = []  # the block table that each row of `_tables` shows
        self._views: tuple[tuple[int, int, int], tuple[torch.Tensor, ...]] | None = None  # of the last batch's shape

    def pack(self, segments: Sequence[Segment]) -> PackedRows:
        """Rows in the order of the segments, which are at least one."""
        tokens: list[int] = []
        positions: list[int] = []
        segment_of_row: list[int] = []
        wanted: list[int] = []
        wanted_of = []
        for index, segment in enumerate(segments):
            count = len(segment.tokens)
            first, end = len(tokens), len(tokens) + count
            tokens += segment.tokens
            positions += range(segment.start, segment.start + count)
            segment_of_row += [index] * count
            if segment.scored:
                scored = first + segment.scored_from
                wanted += range(scored, scored + len(segment.scored))
            wanted += range(end - segment.rows, end)
            wanted_of.append(len(segment.scored) + segment.rows)
        if len(tokens) > self._columns.shape[1]:
            self._columns = np.empty((4, 2 * len(tokens)), np.int64)
            self._views = None
        for column, values in enumerate((tokens, positions, segment_of_row, wanted)):
            self._columns[column, : len(values)] = values
        self._write_tables(segments)
        shape = (len(tokens), len(segments), len(wanted))
        if self._views is None or self._views[0] != shape:
            self._views = shape, self._view(*shape)
        views = self._views[1]
        if self._device.type != "cpu":
            views = tuple(view.to(self._device) for view in views)
        return PackedRows(*views, tuple(wanted_of))

    def _view(self, rows: int, segments: int, wanted: int) -> tuple[torch.Tensor, ...]:
        tokens, positions, segment_of_row = (torch.from_numpy(column[:rows]) for column in self._columns[:3])
        tables = torch.from_numpy(self._tables[:segments])
        return tokens, positions, segment_of_row, tables, torch.from_numpy(self._columns[3, :wanted])

    def _write_tables(self, segments: Sequence[Segment]) -> None:
        """A table is written only when it changed: while nothing does, a request keeps its row and its very tuple."""
        count, longest = len(segments), max(len(segment.block_table) for segment in segments)
        rows, width = self._tables.shape
        if count > rows or longest > width:
            self._tables = np.full((max(2 * count, rows), max(2 * longest, width)), -1, np.int32)
            self._written = []
            self._views = None
        for index, segment in enumerate(segments):
            table = segment.block_table
            if index == len(self._written):
                self._written.append(())
            if self._written[index] is not table:
                self._tables[index, : len(table)] = table
                self._tables[index, len(table) :] = -1
                self._written[index] = table
