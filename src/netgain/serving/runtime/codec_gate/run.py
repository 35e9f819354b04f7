"""From a model's name to what its codecs are worth: what was measured before is kept, what is missing is measured."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from netgain.cost.machine import usable_cores
from netgain.errors import UsageError
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import load_model
from netgain.serving.runtime.codec_gate import kept
from netgain.serving.runtime.codec_gate.measure import Ground, Tell, make_tables, measure
from netgain.serving.runtime.codec_gate.retrieval import PASSAGES
from netgain.serving.runtime.codec_gate.verdict import LostInterval
from netgain.serving.runtime.quality import bundled_text
from netgain.serving.tiers.codecs.names import NAMES
from netgain.serving.tiers.codecs.registry import arithmetic, build


def measured(
    model: str,
    names: Sequence[str],
    texts: Sequence[str],
    cache: Path,
    tell: Tell,
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    activations: str = "auto",
    block_tokens: int = 16,
    again: bool = False,
    interval: LostInterval,
    passages: int = PASSAGES,
) -> kept.Report:
    """The rows of `names`; `interval` is of the difference of paired proportions. `tell` hears what is being done and the share
    of it that is. Raises UsageError for KV that is not plain numbers, and as load_model does."""
    if kv_dtype not in ("auto", "bf16", "fp32"):
        raise UsageError(f"codecs are measured on bf16 or fp32 KV, not {kv_dtype!r}")
    kv = kv_dtype if kv_dtype != "auto" else ("fp32" if dtype == "fp32" else "bf16")
    threads = usable_cores()
    kernels = load_kernels("auto", threads)
    torch.set_num_threads(1 if isinstance(kernels, CompiledKernels) else threads)  # two pools would fight for the cores
    loaded = load_model(model, dtype, kernels, activations=activations)
    computing, train = arithmetic(), bundled_text()
    report = kept.Report(
        subject=kept.Subject(
            weights=loaded.weights_digest,
            numerics=loaded.numerics,
            kv_dtype=str(Ground(loaded, kv, block_tokens).shape.dtype),
            block_tokens=block_tokens,
        ),
        text=kept.text_digest([train, str(passages), *texts]),
        arithmetic=computing.name,
        taken=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=(),
    )
    before = None if again else kept.read(cache, report.subject)
    if before is not None and (before.text, before.arithmetic) == (report.text, report.arithmetic):
        report = before
    missing = [name for name in names if report.row(name) is None]
    if missing:
        ground = Ground(loaded, kv, block_tokens)
        tables = make_tables(ground, train)
        codecs = [build(name, computing, tables.get(name)) for name in missing]
        rows = (*report.rows, *measure(ground, codecs, texts, tell, interval, passages))
        report = kept.with_rows(report, [row for name in NAMES for row in rows if row.name == name])
        kept.write(cache, report, tables)
    return kept.with_rows(report, [row for name in names if (row := report.row(name))])
