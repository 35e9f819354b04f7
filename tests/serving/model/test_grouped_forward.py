"""A pass that is held up between groups of layers has the bits of one that is not, and reads the KV of each group only then."""

import pytest
import torch

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.grouped_forward import GroupedForward
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model

TOKENS = torch.tensor([1, 5, 256, 40, 257, 9, 7, 30])
TABLE = torch.tensor([[2, 0]], dtype=torch.int32)
LAYERS = 5


def rows(kernels, start, end):
    positions = torch.arange(start, end)
    return TOKENS[start:end], positions, kernels.plan(positions, torch.zeros_like(positions), TABLE, 4)


@pytest.mark.parametrize("taps", [(), (0, 2), (1, 4), (-1,)])
@pytest.mark.parametrize("starts", [(0,), (0, 2), (0, 3, 4), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("kernel", ["torch", "auto"])
def test_groups_one_after_the_other_are_the_pass(tiny, kernel, starts, taps):
    kernels = load_kernels(kernel, 2)
    model = load_model(tiny(num_hidden_layers=LAYERS).folder, "fp32", kernels, taps=taps).model
    kv, late = (PagedKV(model.config, 4, 4, torch.float32) for _ in range(2))
    grouped = GroupedForward(model, starts)
    for picked in ([3], [0, 2, 3], []):
        wanted = torch.tensor(picked, dtype=torch.int64)
        tokens, positions, plan = rows(kernels, 0, 4)
        model.forward(tokens, positions, plan, kv, wanted)
        tokens, positions, plan = rows(kernels, 4, 8)
        tapped, got = (torch.full((4, model.tap_width), -1.0) for _ in range(2))
        logits = model.forward(tokens, positions, plan, kv, wanted, None, tapped)
        for part in late.raw():
            part[:, 2] = 255  # not numbers, until the prefix comes
        grouped.begin(tokens, positions, plan, late, wanted, got)
        for group, end in enumerate((*starts[1:], LAYERS)):
            for part, whole in zip(late.raw(), kv.raw(), strict=True):
                part[starts[group] : end, 2] = whole[starts[group] : end, 2]
            grouped.run(group)
        assert torch.equal(grouped.finish(None), logits)
        assert torch.equal(got, tapped)
        assert all(torch.equal(a[:, [0, 2]], b[:, [0, 2]]) for a, b in zip(late.raw(), kv.raw(), strict=True))


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 3, 2), (0, LAYERS)])
def test_what_are_no_groups_is_refused(tiny, starts):
    model = load_model(tiny(num_hidden_layers=LAYERS).folder, "fp32", load_kernels("torch", 1)).model
    with pytest.raises(ValueError, match="no first layers"):
        GroupedForward(model, starts)
