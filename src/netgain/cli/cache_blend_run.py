"""Loads a model, asks it the questions and puts the figures of `netgain cache blend` together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from netgain.cli.progress import progress_bar
from netgain.cost.machine import usable_cores
from netgain.errors import UsageError
from netgain.measuring.quality.estimates import mean_over_texts
from netgain.measuring.quality.paired_scores import tango_interval
from netgain.serving.blocks.keys import Namespace
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.kv import DTYPES
from netgain.serving.model.load import load_model
from netgain.serving.runtime.blending.build import selection_of
from netgain.serving.runtime.blending.measure import Answered, measure
from netgain.serving.runtime.blending.questions import Question
from netgain.serving.tiers.blending.calibration import Calibration, Gate, Point
from netgain.serving.tiers.blending.selection import First, Selection

CONFIDENCE = 0.9  # of both ends together, so the worse end is beyond with 5 %


def calibrate(
    source: str,
    weights: tuple[str, str],
    kv_dtype: str,
    questions: Sequence[Question],
    ratios: Sequence[float],
    firsts: Sequence[int],
    gate: Gate,
    answer_tokens: int,
    now_s: float,
) -> tuple[Calibration, Namespace]:
    """With the namespace that the engine's KV has under these settings; `weights` are engine.model.dtype and .activations. Raises
    UsageError."""
    threads = usable_cores()
    kernels = load_kernels("auto", threads)
    torch.set_num_threads(1 if isinstance(kernels, CompiledKernels) else threads)
    dtype, activations = weights
    loaded = load_model(source, dtype, kernels, activations=activations)
    if kv_dtype not in ("auto", *DTYPES):
        raise UsageError(f"KV dtype {kv_dtype!r} is not supported; supported: auto, {', '.join(DTYPES)}")
    kind = DTYPES[("fp32" if dtype == "fp32" else "bf16") if kv_dtype == "auto" else kv_dtype]
    namespace = loaded.namespace(kind)
    selections: list[Selection] = [*(selection_of(ratio) for ratio in ratios), *(First(count) for count in firsts)]
    with progress_bar() as progress:
        task = progress.add_task("questions", total=1.0)
        try:
            answered = list(
                measure(
                    loaded,
                    kind,
                    questions,
                    selections,
                    answer_tokens,
                    lambda share: progress.update(task, completed=share),
                )
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
    return summed_up(questions, answered, ratios, firsts, gate, now_s), namespace


def summed_up(
    questions: Sequence[Question],
    answered: Sequence[Answered],
    ratios: Sequence[float],
    firsts: Sequence[int],
    gate: Gate,
    now_s: float,
) -> Calibration:
    """Scores are of the kinds of questions that the model, with the prompt computed whole, answers above chance."""
    whole = {one.number: one for one in answered if one.selection is None}
    judged = {kind for kind in {one.kind for one in whole.values()} if _above_chance(whole.values(), kind)}
    scored = {number for number, one in whole.items() if one.kind in judged and one.right is not None}
    shown = scored or {number for number, one in whole.items() if one.right is not None}
    points = []
    for index, selection in enumerate([*(selection_of(ratio) for ratio in ratios), *(First(k) for k in firsts)]):
        mine = {one.number: one for one in answered if one.selection == selection}
        kl = mean_over_texts([one.kl for one in mine.values()], CONFIDENCE)
        assert kl is not None
        lost = sum(bool(whole[n].right) and not mine[n].right for n in scored)
        won = sum(bool(mine[n].right) and not whole[n].right for n in scored)
        interval = None
        if scored:
            low, high = tango_interval(len(scored), lost, won, CONFIDENCE)
            interval = ((lost - won) / len(scored), -high, -low)
        points.append(
            Point(
                ratio=ratios[index] if index < len(ratios) else None,
                first=None if index < len(ratios) else firsts[index - len(ratios)],
                recomputed=statistics.fmean(one.recomputed for one in mine.values()),
                kl=(kl.value, kl.low or 0.0, kl.high if kl.high is not None else float("inf")),
                same_top=statistics.fmean(value for one in mine.values() for value in one.same_top),
                score=statistics.fmean(bool(mine[n].right) for n in shown) if shown else 0.0,
                score_lost=interval,
                ttft_ratio=statistics.median(mine[n].seconds / whole[n].seconds for n in mine),
            )
        )
    right = [bool(whole[number].right) for number in shown]
    low, high = _proportion(sum(right), len(right))
    return Calibration(
        measured_at=now_s,
        prompts=len(whole),
        chunks=round(statistics.median(len(one.chunks) for one in questions)),
        prompt_tokens=round(statistics.median(one.prompt_tokens for one in whole.values())),
        chance=max((whole[n].chance for n in shown), default=1.0),
        whole_score=(statistics.fmean(right) if right else 0.0, low, high),
        gate=gate,
        points=tuple(points),
        text=", ".join(sorted(judged)) or "none",
    )


def _above_chance(whole: object, kind: str) -> bool:
    scored = [one for one in whole if one.kind == kind and one.right is not None]  # type: ignore[attr-defined]
    if not scored:
        return False
    low, _ = _proportion(sum(bool(one.right) for one in scored), len(scored))
    return low > max(one.chance for one in scored)


def _proportion(right: int, count: int) -> tuple[float, float]:
    """Wilson's interval (E. Wilson, JASA 22, 1927)."""
    if not count:
        return 0.0, 1.0
    z = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    share, spread = right / count, z * z / count
    centre, half = share + spread / 2, z * (share * (1 - share) / count + spread / (4 * count)) ** 0.5
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)
