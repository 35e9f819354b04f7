"""Segments become flat rows, whatever the buffers held before."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from netgain.ledger.stage import Stage
from netgain.serving.engine.batch import Segment
from netgain.serving.engine.request import SamplingParams
from netgain.serving.runtime.packing import Packer

SAMPLING = SamplingParams(max_tokens=1, temperature=0.0)


def segment(tokens, start, blocks, rows=1, scored=(), scored_from=0):
    return Segment(
        request_id="r",
        stage=Stage.DECODE,
        tokens=tokens,
        start=start,
        block_table=blocks,
        rows=rows,
        drafts=0,
        sampling=SAMPLING,
        choice=0,
        scored=scored,
        scored_from=scored_from,
    )


@st.composite
def segments(draw):
    tokens = draw(st.lists(st.integers(0, 99), min_size=1, max_size=90).map(tuple))
    rows = draw(st.integers(0, len(tokens)))
    scored = draw(st.integers(0, len(tokens) - rows))
    first = draw(st.integers(0, len(tokens) - rows - scored))
    start, blocks = draw(st.integers(0, 500)), draw(st.lists(st.integers(0, 9), min_size=1, max_size=150).map(tuple))
    return segment(tokens, start, blocks, rows, (5,) * scored, first)


@given(st.lists(st.lists(segments(), min_size=1, max_size=20), min_size=1, max_size=4))
def test_rows_are_those_of_the_segments_in_every_batch(batches):
    packer = Packer(torch.device("cpu"))
    for batch in batches:
        packed = packer.pack(batch)
        assert packed.tokens.tolist() == [token for each in batch for token in each.tokens]
        assert packed.positions.tolist() == [each.start + i for each in batch for i in range(len(each.tokens))]
        assert packed.segment_of_row.tolist() == [i for i, each in enumerate(batch) for _ in each.tokens]
        end, wanted = 0, []
        for each in batch:
            scored = end + each.scored_from
            end += len(each.tokens)
            wanted += [*range(scored, scored + len(each.scored)), *range(end - each.rows, end)]
        assert packed.wanted.tolist() == wanted
        assert packed.wanted_of == tuple(len(each.scored) + each.rows for each in batch)
        width = packed.tables.shape[1]
        assert packed.tables.tolist() == [
            [*each.block_table] + [-1] * (width - len(each.block_table)) for each in batch
        ]


def test_buffers_are_the_same_while_a_batch_decodes():
    packer, tables = Packer(torch.device("cpu")), [(3, 1), (2,)]
    addresses = set()
    for step in range(20):
        packed = packer.pack([segment((step,), 10 + step, blocks) for blocks in tables])
        addresses.add(tuple(tensor.data_ptr() for tensor in packed[:5]))
    assert len(addresses) == 1
