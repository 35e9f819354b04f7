"""What blending costs in quality for one model, by ratio, and the smallest ratio that passes the gate: measured once, kept."""

from pathlib import Path
from typing import Literal

import msgspec

from netgain.cost import kept
from netgain.serving.blocks.keys import Namespace


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be lost, with 95 % confidence: mean KL per token of the answer in nats, and the share of right answers."""

    kl: float = 0.05
    score: float = 0.05


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One ratio (None: the first `first` tokens of each chunk). Intervals are (mean, low, high) over prompts: `kl` in nats per
    token of the answer, `score_lost` the share of right answers less than with the prompt computed whole (None: the model
    is too weak to judge). `same_top`: the share of the answer's tokens whose likeliest is the same. `recomputed` is the
    share of the chunks' tokens times layers. `ttft_ratio` is the time to the first token over that of a whole prefill."""

    ratio: float | None
    first: int | None = None
    recomputed: float
    kl: tuple[float, float, float]
    same_top: float
    score: float
    score_lost: tuple[float, float, float] | None
    ttft_ratio: float

    def passes(self, gate: Gate) -> bool:
        """Whether even the worse end of both intervals is within the gate."""
        lost = self.score_lost
        return self.kl[2] <= gate.kl and (lost is None or lost[2] <= gate.score)


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """`judged`: whether the model, with the prompt computed whole, answers above chance (its interval's low end against
    `chance`); else quality is KL alone. `ratio` is the chosen one; 1 is exact and always passes."""

    format: Literal[1] = 1
    measured_at: float
    prompts: int
    chunks: int
    prompt_tokens: int
    chance: float
    whole_score: tuple[float, float, float]
    gate: Gate
    points: tuple[Point, ...]
    text: str

    @property
    def judged(self) -> bool:
        return self.whole_score[1] > self.chance

    @property
    def ratio(self) -> float:
        passing = [point.ratio for point in self.points if point.ratio is not None and point.passes(self.gate)]
        return min(passing, default=1.0)


def calibration_file(cache: Path, namespace: Namespace) -> Path:
    """Where the calibration of a model in these numerics is kept."""
    return kept.file_of(cache / "blending", msgspec.to_builtins(namespace))


def read_calibration(cache: Path, namespace: Namespace) -> Calibration | None:
    """The one that was kept, if there is one."""
    return kept.read(calibration_file(cache, namespace), Calibration)
