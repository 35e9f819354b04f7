"""A second, smaller model of the same vocabulary, which drafts for the first."""

from typing import NamedTuple

import torch

from netgain.errors import UsageError
from netgain.serving.blocks.layout import KVLayout
from netgain.serving.engine.model_drafts import DraftLimits, ModelDrafts
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.config import ModelConfig
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kv import SCALE_BYTES
from netgain.serving.model.load import LoadedModel, load_model
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.runtime.config import SpeculationSettings
from netgain.serving.runtime.torch_executor import TorchExecutor


class DraftModel(NamedTuple):
    """A draft that is loaded; its KV is allocated once it is known how many blocks there are."""

    loaded: LoadedModel
    layout: KVLayout


def load_draft_model(
    settings: SpeculationSettings, target: LoadedModel, kernels: Kernels, kv_dtype: torch.dtype, block_tokens: int
) -> DraftModel | None:
    """What `settings` name as draft; None unless the method is one of a model. Raises UsageError when it does not fit."""
    if settings.draft is None:
        return None
    loaded = load_model(settings.draft, settings.draft_dtype, kernels, target.model.device)
    check_vocabularies(target.tokenizer, loaded.tokenizer, settings.draft)
    return DraftModel(loaded, kv_layout(loaded.config, kv_dtype, block_tokens))


def model_drafts(
    draft: DraftModel, kernels: Kernels, kv_dtype: torch.dtype, blocks: int, vocab: int, rows: int
) -> ModelDrafts:
    """Drafts from it over the target's blocks; `vocab` ids are the target's, `rows` it reads at most in one step."""
    config, tokens = draft.loaded.config, draft.layout.block_tokens
    kv = PagedKV(config, blocks, tokens, kv_dtype, draft.loaded.model.device)
    return ModelDrafts(
        TorchExecutor(draft.loaded.model, kv, kernels),
        DraftLimits(context=config.context, vocab=vocab, rows=rows),
        blocks=blocks,
        block_tokens=tokens,
    )


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
