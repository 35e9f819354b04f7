"""What drafts beside the target: a second model of the same vocabulary, or a head that was trained on the target's features."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from netgain.errors import UsageError
from netgain.serving.blocks.layout import KVLayout
from netgain.serving.engine.model_drafts import DraftLimits, ModelDrafts
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.digest import files_digest
from netgain.serving.model.drafts.feature_head import FeatureHead, one_layer
from netgain.serving.model.drafts.manifest import MANIFEST, WEIGHTS, Manifest, check_target, read_manifest
from netgain.serving.model.drafts.medusa import MedusaHeads
from netgain.serving.model.drafts.mtp import MtpModule
from netgain.serving.model.drafts.shapes import check_head
from netgain.serving.model.features import FeaturePlane
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kv import SCALE_BYTES
from netgain.serving.model.load import LoadedModel, load_model
from netgain.serving.model.safetensors_source import SafetensorsSource
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.runtime.config import SpeculationSettings
from netgain.serving.runtime.head_executor import FeatureHeadExecutor, MedusaExecutor
from netgain.serving.runtime.torch_executor import TorchExecutor

HEAD_DTYPE = (
    "int8"  # under auto: half of what bf16 reads from memory for every draft, and none but near ties draft otherwise
)


class DraftFiles(NamedTuple):
    """What the configuration names, before anything is loaded. `manifest` is there for a draft that was trained."""

    source: str
    manifest: Manifest | None

    @property
    def taps(self) -> tuple[int, ...]:
        """The layers of the target that it wants to see."""
        return () if self.manifest is None or self.manifest.kind == "layers" else self.manifest.taps

    @property
    def digest(self) -> str:
        """What the features of the target that it makes depend on; layers of the target's own make none."""
        if self.manifest is None or self.manifest.kind == "layers":
            return ""
        return files_digest([Path(self.source) / WEIGHTS])


class Drafts(NamedTuple):
    """Ready to draft. `features` is where the target's executor leaves what its taps give, if that is wanted."""

    proposer: ModelDrafts
    features: FeaturePlane | None = None


@dataclass(frozen=True)
class LoadedDraft:
    """`token_bytes` is what it takes of every token in the KV cache, `most` the longest draft that it can make. `over`
    gives it memory for so many blocks; the rows that it may read in one step are the second argument."""

    name: str
    weight_bytes: int
    token_bytes: int
    most: int | None
    over: Callable[[int, int], Drafts]


def draft_files(settings: SpeculationSettings) -> DraftFiles | None:
    """None unless a draft is named. Raises UsageError for a manifest that cannot be read."""
    if settings.draft is None:
        return None
    folder = Path(settings.draft)
    return DraftFiles(settings.draft, read_manifest(folder) if (folder / MANIFEST).is_file() else None)


def load_draft(
    files: DraftFiles, dtype: str, target: LoadedModel, kernels: Kernels, kv_dtype: torch.dtype, block_tokens: int
) -> LoadedDraft:
    """Raises UsageError when it does not fit `target`. `dtype` is one of DTYPES."""
    if files.manifest is not None:
        check_target(files.manifest, Path(files.source), target.weights_digest, target.tokenizer_digest)
        if files.manifest.kind != "layers":
            return _load_head(files.manifest, Path(files.source), dtype, target, kernels, kv_dtype, block_tokens)
    loaded = load_model(files.source, dtype, kernels, target.model.device)
    check_vocabularies(target.tokenizer, loaded.tokenizer, files.source)
    config, layout = loaded.config, kv_layout(loaded.config, kv_dtype, block_tokens)

    def over(blocks: int, rows: int) -> Drafts:
        kv = PagedKV(config, blocks, block_tokens, kv_dtype, target.model.device)
        limits = DraftLimits(context=config.context, vocab=target.config.vocab, rows=rows)
        executor = TorchExecutor(loaded.model, kv, kernels, vocab=target.config.vocab)
        return Drafts(ModelDrafts(executor, limits, blocks=blocks, block_tokens=block_tokens))

    return LoadedDraft(loaded.name, loaded.model.weight_bytes, layout.token_bytes, None, over)


def _load_head(
    manifest: Manifest,
    folder: Path,
    dtype: str,
    target: LoadedModel,
    kernels: Kernels,
    kv_dtype: torch.dtype,
    block_tokens: int,
) -> LoadedDraft:
    model, config, device = target.model, target.config, target.model.device
    source = SafetensorsSource(folder, WEIGHTS)
    check_head(source, manifest, config)
    name = f"{manifest.kind} draft {folder.name}"
    kept = HEAD_DTYPE if dtype == "auto" else dtype
    feature_bytes = FeaturePlane.bytes_per_token(model.tap_width)
    context, vocab = config.context, config.vocab
    if manifest.kind == "medusa":
        heads = MedusaHeads(config, source, kernels, device, manifest.positions, kept)

        def medusa_over(blocks: int, rows: int) -> Drafts:
            features = FeaturePlane(blocks, block_tokens, model.tap_width, device, kernels)
            limits = DraftLimits(context=context, vocab=vocab, rows=rows, reads=False, chains=True)
            executor = MedusaExecutor(heads, model, features, kernels)
            drafts = ModelDrafts(executor, limits, blocks=blocks, block_tokens=block_tokens)
            return Drafts(drafts, features)

        return LoadedDraft(name, heads.weight_bytes, feature_bytes, heads.count, medusa_over)
    return _reading(FeatureHead(config, source, kernels, device, kept), name, target, kernels, kv_dtype, block_tokens)


def load_mtp(
    target: LoadedModel, dtype: str, kernels: Kernels, kv_dtype: torch.dtype, block_tokens: int
) -> LoadedDraft:
    """The MTP module of the checkpoint that `target` was loaded from, its last layer tapped. Raises UsageError where it has
    none, or not a whole one."""
    if not target.path.is_dir():
        raise UsageError(
            f"{target.path} carries no MTP module: speculation method mtp needs a Hugging Face folder of a model that has one"
        )
    module = MtpModule(target.model, SafetensorsSource(target.path), kernels, dtype)
    count = target.config.mtp
    name = "MTP module" if count == 1 else f"the first of {count} MTP modules"
    return _reading(module, name, target, kernels, kv_dtype, block_tokens)


def _reading(
    head: FeatureHead | MtpModule,
    name: str,
    target: LoadedModel,
    kernels: Kernels,
    kv_dtype: torch.dtype,
    block_tokens: int,
) -> LoadedDraft:
    """A head that reads the text, with KV of its own."""
    config, device = target.config, target.model.device
    layout = kv_layout(one_layer(config), kv_dtype, block_tokens)

    def over(blocks: int, rows: int) -> Drafts:
        features = FeaturePlane(blocks, block_tokens, target.model.tap_width, device, kernels)
        kv = PagedKV(one_layer(config), blocks, block_tokens, kv_dtype, device)
        limits = DraftLimits(context=config.context, vocab=config.vocab, rows=rows, keeps_guesses=False, chains=True)
        executor = FeatureHeadExecutor(head, target.model, kv, features, kernels)
        drafts = ModelDrafts(executor, limits, blocks=blocks, block_tokens=block_tokens)
        return Drafts(drafts, features)

    token_bytes = FeaturePlane.bytes_per_token(target.model.tap_width) + layout.token_bytes
    return LoadedDraft(name, head.weight_bytes, token_bytes, None, over)


def kv_layout(config: ModelConfig, kv_dtype: torch.dtype, block_tokens: int) -> KVLayout:
    return KVLayout(
        layers=config.layers,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_bytes=kv_dtype.itemsize,
        scale_bytes=SCALE_BYTES if kv_dtype == torch.int8 else 0,
        block_tokens=block_tokens,
    )


def check_vocabularies(target: Tokenizer, draft: Tokenizer, source: str) -> None:
    """A draft speaks in ids: raises UsageError where one of them means another token to the target."""
    if target.digest == draft.digest:
        return
    for token in range(min(target.vocab_size, draft.vocab_size)):
        here, there = target.spelling(token), draft.spelling(token)
        if here != there and here is not None and there is not None:
            raise UsageError(
                f"{source} cannot draft for this model: token {token} is {there!r} to it and {here!r} to the model; "
                "name a draft of the same vocabulary"
            )
