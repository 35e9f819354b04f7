"""What a tap hands out is what stands behind that layer, and tapping changes no bit of the logits."""

import pytest
import torch

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model

TOKENS = torch.tensor([1, 5, 256, 40, 257, 9])


def forward(loaded, kernels, picked):
    kv = PagedKV(loaded.config, 4, 4, torch.float32)
    positions = torch.arange(len(TOKENS))
    plan = kernels.plan(positions, torch.zeros_like(positions), torch.tensor([[2, 0]], dtype=torch.int32), 4)
    tapped = torch.full((len(TOKENS), loaded.model.tap_width), torch.nan)
    logits = loaded.model.forward(TOKENS, positions, plan, kv, torch.tensor(picked), None, tapped)
    return logits, tapped.split(loaded.config.hidden, dim=1) if loaded.model.taps else ()


@pytest.mark.parametrize("taps", [(0,), (0, 2), (1, 3), (3,), (0, 1, 2, 3)])
@pytest.mark.parametrize("name", ["torch", "auto"])
def test_taps_are_the_layers_outputs(tiny, taps, name):
    model, kernels = tiny(num_hidden_layers=4), load_kernels(name, 2)
    plain, none = forward(load_model(model.folder, "fp32", kernels), kernels, [1, 5])
    logits, tapped = forward(load_model(model.folder, "fp32", kernels, taps=taps), kernels, [1, 5])
    assert torch.equal(logits, plain)
    assert none == ()
    seen = {}
    for number, layer in enumerate(model.reference.model.layers):
        layer.register_forward_hook(
            lambda _, __, out, number=number: seen.update({number: out[0] if isinstance(out, tuple) else out})
        )
    with torch.inference_mode():
        model.reference(TOKENS[None])
    assert len(tapped) == len(taps)
    for tap, got in zip(taps, tapped, strict=True):
        expected = seen[tap].reshape(got.shape)
        assert float((got - expected).abs().max()) < 1e-4 * float(expected.abs().max())
