"""Builds an engine from its configuration: the one place that knows which parts fit together."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import psutil
import torch

from netgain.cost.machine import this_machine, usable_cores
from netgain.errors import UsageError
from netgain.folders import cache_folder
from netgain.ledger.clock import Clock
from netgain.ledger.collector import Collector
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.blocks.retention import Retention
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.grammar import Grammars
from netgain.serving.engine.model_drafts import ModelDrafts
from netgain.serving.engine.prefill_cost import PrefillCost
from netgain.serving.engine.protocols import Executor, Proposer, Verifier
from netgain.serving.engine.purging import Purging
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.step_curve import StepCurve, step_limits
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.drafts.mtp import LAST_LAYER
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.kv import DTYPES
from netgain.serving.model.load import LoadedModel, load_model
from netgain.serving.runtime.blending.build import blending_told, build_blending, chunk_shapes
from netgain.serving.runtime.block_memory import PoolMemory
from netgain.serving.runtime.build_store import build_store
from netgain.serving.runtime.build_tiering import build_tiering
from netgain.serving.runtime.codec_gate.serving import build_coder, measured_codecs, used_codecs
from netgain.serving.runtime.config import CacheSettings, EngineConfig, SpeculationSettings
from netgain.serving.runtime.draft_memory import DraftMemory
from netgain.serving.runtime.drafts import LoadedDraft, draft_files, kv_layout, load_draft, load_mtp
from netgain.serving.runtime.engine_info import EngineInfo
from netgain.serving.runtime.heap import give_back_freed_memory
from netgain.serving.runtime.kept_step_cost import described, step_cost_store, upkeep_of
from netgain.serving.runtime.tier_specs import shown
from netgain.serving.runtime.torch_executor import TorchExecutor
from netgain.serving.runtime.touching import touch_behind
from netgain.serving.speculation.registry import (
    ControlOptions,
    ProposerOptions,
    build_control,
    build_proposer,
    build_verifier,
)
from netgain.serving.speculation.suffix import SuffixOptions
from netgain.serving.speculation.synthetic import NAME_SUFFIX, SyntheticVerifier

DEFAULT_KV_TOKENS = 65_536
MEMORY_SHARE = 0.3  # of what is available, at most, for KV that nobody sized


class BuiltEngine(NamedTuple):
    """An engine with the model it runs; closing the engine gives the memory back."""

    engine: Engine
    loaded: LoadedModel
    info: dict[str, Any]
    draft_memory: DraftMemory
    purging: Purging


def build_engine(
    config: EngineConfig,
    clock: Clock,
    collector: Collector | None = None,
    *,
    wrap_executor: Callable[[Executor], Executor] = lambda executor: executor,
    wrap_proposer: Callable[[Proposer], Proposer] = lambda proposer: proposer,
) -> BuiltEngine:
    """Load weights and put the engine together. The wrappers let tests slow a part down where it really runs.

    Raises UsageError for what the configuration asks and the model, device or memory cannot give.
    """
    device = _device(config.model.device)
    notes: list[str] = []
    threads = _threads(config.model.threads, notes)
    kernels = load_kernels(config.model.kernels, threads, device)
    # compiled kernels have a pool of their own; a second one in torch would fight it for the cores
    torch.set_num_threads(1 if isinstance(kernels, CompiledKernels) else threads)
    speculation = config.speculation
    files = draft_files(speculation)
    taps = files.taps if files is not None else LAST_LAYER if speculation.method == "mtp" else ()
    loaded = load_model(config.model.source, config.model.dtype, kernels, device, taps, config.model.activations)
    kv_dtype = _kv_dtype(config.model.kv_dtype, config.model.dtype)
    model = loaded.config
    layout = kv_layout(model, kv_dtype, config.cache.block_tokens)
    if speculation.synthetic_rates is not None:
        notes.append("acceptance of drafts is synthetic, so the text is not the model's: for measuring costs only")
    draft = None
    if files is not None:
        draft = load_draft(files, speculation.draft_dtype, loaded, kernels, kv_dtype, layout.block_tokens)
    elif speculation.method == "mtp":
        draft = load_mtp(loaded, speculation.draft_dtype, kernels, kv_dtype, layout.block_tokens)
    give_back_freed_memory()
    token_bytes = layout.token_bytes + (draft.token_bytes if draft else 0)
    max_length = _max_length(config.scheduler.max_model_len, model.context, notes)
    blocks = layout.blocks_for(_kv_tokens(config.cache, layout.block_tokens, token_bytes, max_length))
    kv_tokens = blocks * layout.block_tokens
    if kv_tokens < max_length:
        notes.append(
            f"the KV cache holds {kv_tokens:,} tokens, so no request can have the {max_length:,} that are allowed: "
            "raise engine.cache.kv_tokens for longer ones"
        )
    kv = PagedKV(model, blocks, layout.block_tokens, kv_dtype, device)
    drafts = draft.over(blocks, config.scheduler.max_batch_tokens) if draft else None
    namespace = loaded.namespace(kv_dtype)
    coder = build_coder(config.kv, namespace, layout.block_tokens, config.model.source, clock, notes)
    memory = PoolMemory(model, kv, drafts.features if drafts else None, files.digest if files else "")
    tiers = None
    if config.kv.tiers:
        others = chunk_shapes(config.blending, model, kv_dtype)
        tiers = build_store(config.kv, memory.planes, clock, coder, others)
        touch_behind(memory.memories)
    heads = draft.name if draft and drafts and drafts.features is not None else None
    retention = Retention(config.kv.retention_s)
    blending = build_blending(config, loaded, kv_dtype, tiers, heads, notes, retention)
    blender = blending.blender if blending else None
    executor = TorchExecutor(loaded.model, kv, kernels, *(drafts[1:] if drafts else ()), blender=blender)
    scheduler = Scheduler(
        BlockPool(blocks, retention),
        clock,
        block_tokens=layout.block_tokens,
        max_batch_tokens=config.scheduler.max_batch_tokens,
        max_running=config.scheduler.max_running,
        max_waiting=config.scheduler.max_waiting,
        max_length=max_length,
        prefix_caching=config.cache.prefix_caching,
    )
    text_proposer = None if drafts or speculation.method == "none" else _text_proposer(speculation)
    proposer: Proposer | ModelDrafts | None = drafts.proposer if drafts else None
    if text_proposer is not None:
        proposer = wrap_proposer(text_proposer)
    longest = _longest_draft(speculation.k, draft, notes)
    steps = wrap_executor(executor)
    step_curve = StepCurve(
        steps,
        scheduler.pool,
        clock,
        step_limits(scheduler),
        {
            **_on_this_machine(),
            "weights": loaded.weights_digest,
            "numerics": loaded.numerics,
            "kernels": kernels.build,
            "kv_dtype": namespace.kv_dtype,
            "threads": str(threads),
            "device": str(device),
            "max_tokens": str(scheduler.max_batch_tokens),
            "max_length": str(scheduler.max_length),
        },
        store=step_cost_store(),
        upkeep=upkeep_of(config.step_cost),
    )
    collector = collector or Collector()
    measured = [] if coder is None else measured_codecs(namespace, layout.block_tokens, cache_folder())
    if coder is not None:
        namespace = msgspec.structs.replace(namespace, numerics=coder.numerics(namespace.numerics))
    cost = PrefillCost(lambda: step_curve.cost, scheduler.max_batch_tokens)
    if blending is not None:
        blending.store.choice.prefill_s = cost.seconds
    tiering = None
    if tiers is not None:
        tiering = build_tiering(
            config.kv,
            tiers,
            memory,
            scheduler,
            clock,
            collector,
            cost,
            drafts.proposer.rewritten if drafts else None,
        )
    engine = Engine(
        executor=steps,
        scheduler=scheduler,
        namespace=namespace,
        clock=clock,
        collector=collector,
        vocab_size=model.vocab,
        eos_ids=frozenset(loaded.eos),
        proposer=proposer,
        verifier=_verifier(speculation) if proposer else None,
        max_drafts=longest,
        control=build_control(
            speculation.control,
            ControlOptions(
                k=longest,
                by_load=speculation.k_by_load,
                cost=lambda: step_curve.cost,
                computed=isinstance(proposer, ModelDrafts),
            ),
        ),
        grammars=Grammars(loaded.tokenizer.token_bytes, model.vocab),
        step_curve=step_curve,
        tiering=tiering,
        chunks=blending.store if blending else None,
    )
    draft_weight_bytes, draft_token_bytes = (draft.weight_bytes, draft.token_bytes) if draft else (0, 0)
    info = EngineInfo(
        model=(config.model.name or loaded.name) + (NAME_SUFFIX if speculation.synthetic_rates else ""),
        source=config.model.source,
        weights=loaded.weights_digest,
        dtype="+".join(loaded.computed).lower(),
        activations="+".join(loaded.activations),
        model_note="; ".join(loaded.notes) or None,
        settings_note="; ".join(notes) or None,
        kv_dtype=namespace.kv_dtype,
        kernels=kernels.name,
        kernels_note=kernels.note,
        device=str(device),
        devices=1,
        threads=threads,
        memory_bytes=loaded.model.weight_bytes + draft_weight_bytes + kv_tokens * token_bytes,
        max_running=config.scheduler.max_running,
        max_batch_tokens=config.scheduler.max_batch_tokens,
        speculation=speculation.method,
        prefix_caching=config.cache.prefix_caching,
        vocab_size=model.vocab,
        max_length=min(max_length, kv_tokens),
        kv_tokens=kv_tokens,
        kv_token_bytes=token_bytes,
        weight_bytes=loaded.model.weight_bytes,
        step_weight_bytes=loaded.model.step_weight_bytes,
        layer_ops=loaded.layer_ops,
        head_ops=loaded.head_ops,
        windowed=any(window is not None and window < max_length for window in model.windows),
        step_cost=described(step_curve),
        kv_tiers=[shown(tier) for tier in config.kv.tiers],
        kv_policy=config.kv.policy,
        kv_codecs=used_codecs(config.kv) if coder else [],
        kv_codecs_measured=measured,
        kv_lossy=coder is not None and coder.lossy,
        blending=blending_told(config.blending, loaded, kv_dtype),
        draft=draft.name if draft else None,
        draft_weight_bytes=draft_weight_bytes,
        draft_kv_token_bytes=draft_token_bytes,
    )
    draft_memory = DraftMemory(draft_weight_bytes, draft_token_bytes, kv_tokens, text_proposer)
    purging = Purging(scheduler, *(tiers or (None, None)), engine.chunks)
    return BuiltEngine(engine, loaded, msgspec.structs.asdict(info), draft_memory, purging)


def _text_proposer(speculation: SpeculationSettings) -> Proposer:
    options = ProposerOptions(
        k=speculation.k,
        lookup_min=speculation.lookup_min,
        lookup_max=speculation.lookup_max,
        suffix=SuffixOptions(**speculation.suffix.model_dump()),
    )
    return build_proposer(speculation.method, options)


def _longest_draft(asked: int, draft: LoadedDraft | None, notes: list[str]) -> int:
    if draft is None or draft.most is None or asked <= draft.most:
        return asked
    notes.append(f"engine.speculation.k is {asked}, {draft.name} was made for {draft.most}: {draft.most} is used")
    return draft.most


def _verifier(speculation: SpeculationSettings) -> Verifier:
    if speculation.synthetic_rates is not None:
        return SyntheticVerifier(speculation.synthetic_rates)
    return build_verifier(speculation.verifier)


def _on_this_machine() -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.structs.asdict(this_machine()).items()}


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("engine.model.device is 'cuda', but torch finds no CUDA device here: use 'cpu' or 'auto'")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and torch.cuda.is_available()) else "cpu")


def _threads(asked: int | None, notes: list[str]) -> int:
    """Threads to compute with: no more than cores, since threads that wait for each other on one core are slower."""
    cores = usable_cores()
    if asked is not None and asked > cores:
        notes.append(f"engine.model.threads is {asked}, more than the cores available to this process: it uses {cores}")
    return min(asked or cores, cores)


def _max_length(asked: int | None, context: int, notes: list[str]) -> int:
    """Tokens per request: no more than the model was made for."""
    if asked is not None and asked > context:
        notes.append(
            f"engine.scheduler.max_model_len is {asked:,}, the limit of the model is {context:,}: {context:,} is used"
        )
    return min(asked or context, context)


def _kv_dtype(name: str, model_dtype: str) -> torch.dtype:
    if name == "auto":
        return torch.float32 if model_dtype == "fp32" else torch.bfloat16
    return DTYPES[name]


def _kv_tokens(cache: CacheSettings, block_tokens: int, token_bytes: int, max_length: int) -> int:
    available = psutil.virtual_memory().available
    if cache.kv_tokens is not None:
        wanted = cache.kv_tokens * token_bytes
        if wanted > available:
            raise UsageError(
                f"cache.kv_tokens = {cache.kv_tokens} needs {wanted / 2**30:.1f} GiB, "
                f"{available / 2**30:.1f} GiB of memory are available: lower it"
            )
        return cache.kv_tokens
    return max(block_tokens, min(max(DEFAULT_KV_TOKENS, max_length), int(available * MEMORY_SHARE / token_bytes)))
