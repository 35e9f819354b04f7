"""What the engine's kernels compute of a head is what the torch module computes, for a whole text and in pieces."""

from itertools import pairwise

import pytest
import torch

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.drafts.feature_head import FeatureHead, one_layer
from netgain.serving.model.drafts.manifest import WEIGHTS
from netgain.serving.model.drafts.medusa import MedusaHeads
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.model.safetensors_source import SafetensorsSource
from netgain.serving.training.modules import FeatureHeadModule, MedusaModule
from tests.serving.runtime.heads import write_head

TEXT = [1, 5, 256, 40, 7, 7, 91, 12, 40, 3, 250, 8, 61, 5, 256, 40, 77, 23, 9, 100, 4, 4, 17, 30, 2, 11, 60]
BLOCK = 8
TAPS = (0, 2)


class Bench:
    """A target and a head over one pool; `compute` feeds the text in pieces, the target before the head."""

    def __init__(self, target, folder, kind) -> None:
        self.kernels = load_kernels("auto", 1)
        self.loaded = load_model(target.folder, "fp32", self.kernels, taps=TAPS)
        config = self.loaded.config
        source = SafetensorsSource(folder, WEIGHTS)
        cpu = torch.device("cpu")
        if kind == "feature":
            self.head = FeatureHead(config, source, self.kernels, cpu)
            self.module = FeatureHeadModule(config, len(TAPS), self.head.ids)
        else:
            self.head = MedusaHeads(config, source, self.kernels, cpu, 3)
            self.module = MedusaModule(config, len(TAPS), self.head.ids, 3)
        self.module.load_state_dict({name: source.dense(name) for name in source.names()})
        self.module.load_state_dict(
            {k: v.to(torch.bfloat16).float() if v.ndim > 1 else v for k, v in self.module.state_dict().items()}
        )
        blocks = -(-len(TEXT) // BLOCK) + 1
        self.table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32)[None]
        self.kv = PagedKV(config, blocks, BLOCK, torch.float32)
        self.own = PagedKV(one_layer(config), blocks, BLOCK, torch.float32)
        self.features = FeaturePlane(blocks, BLOCK, self.loaded.model.tap_width, cpu, self.kernels)

    def target(self, start, end) -> torch.Tensor:
        """The taps of the text's part, side by side."""
        tokens, positions, _, plan = self.part(start, end)
        tapped = torch.empty(end - start, self.loaded.model.tap_width)
        self.loaded.model.forward(tokens, positions, plan, self.kv, torch.tensor([0]), None, tapped)
        self.features.write(tapped, plan)
        return tapped

    def part(self, start, end):
        positions = torch.arange(start, end)
        of_row = torch.zeros(end - start, dtype=torch.int64)
        return torch.tensor(TEXT[start:end]), positions, of_row, self.kernels.plan(positions, of_row, self.table, BLOCK)

    def heads_logits(self, start, end) -> torch.Tensor:
        tokens, positions, of_row, plan = self.part(start, end)
        before = self.head.fuse(self.features.before(positions, of_row, self.table))
        if isinstance(self.head, MedusaHeads):
            return torch.stack([self.head.forward(before, number) for number in range(3)])
        embedded = self.loaded.model.embed(tokens)
        return self.head.forward(embedded, before, positions, plan, self.own, torch.arange(end - start))[0][None]

    def modules_logits(self, tapped) -> torch.Tensor:
        embedded = self.loaded.model.embed(torch.tensor(TEXT))[None]
        passes = 3 if isinstance(self.head, MedusaHeads) else 1
        with torch.no_grad():
            return torch.cat([self.module.head(said) for said in self.module(embedded, tapped[None], passes)])


@pytest.fixture(params=["feature", "medusa"])
def bench(request, tiny, tmp_path) -> Bench:
    target = tiny(num_hidden_layers=3)
    write_head(tmp_path / "head", target.folder, request.param, taps=TAPS, said=range(0, 300, 3))
    return Bench(target, tmp_path / "head", request.param)


@pytest.mark.parametrize("cuts", [(), (11,), (1, 2, 8, 16, 17)])
def test_the_engines_logits_are_the_modules(bench, cuts):
    """Features are kept in bfloat16, products of the module are float32: nothing else differs."""
    ends = [0, *cuts, len(TEXT)]
    parts = list(pairwise(ends))
    tapped = torch.cat([bench.target(*part) for part in parts])
    found = torch.cat([bench.heads_logits(*part) for part in parts], dim=1)
    expected = bench.modules_logits(tapped)
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())
    assert float((found.roll(1, 1) - expected).abs().max()) > 0.5 * float(expected.abs().max())


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_other_families_layers_are_the_same_too(tiny, tmp_path, family):
    target = tiny(num_hidden_layers=3, family=family)
    write_head(tmp_path / "head", target.folder, "feature", taps=TAPS)
    bench = Bench(target, tmp_path / "head", "feature")
    tapped = bench.target(0, len(TEXT))
    found, expected = bench.heads_logits(0, len(TEXT)), bench.modules_logits(tapped)
    assert float((found - expected).abs().max()) < 0.02 * float(expected.abs().max())
