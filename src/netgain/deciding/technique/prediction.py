"""What a technique is expected to do, said before it is tried so that it can be scored afterwards."""

import msgspec

from netgain.ledger.records import DraftCounts
from netgain.ledger.stage import Stage

Value = int | float | str
Setting = dict[str, Value]


class Considered(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that was predicted: its net gain in mean seconds per request, and its end-to-end speedup."""

    setting: Setting
    net_s: float
    speedup_e2e: float
    committed_per_step: float | None


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The best predicted setting of a technique. Speedups are baseline / candidate times, above 1 is faster.

    `speedup_e2e` and `speedup_tpot` are medians over prompts (as the experiment's), `speedup_mean` total over total time.
    `low` and `high` bound `speedup_e2e` over the choice of prompts only; errors of the cost curve come on top.
    `saved_s` and `spent_s` are mean seconds per request and stage, both positive; `net_s` is their difference.
    `off_is_better`: no setting beats leaving the technique off (for speculation: K = 0).
    """

    technique: str
    setting: Setting
    off_is_better: bool
    speedup_e2e: float
    low: float | None
    high: float | None
    speedup_tpot: float | None
    speedup_mean: float
    saved_s: dict[Stage, float]
    spent_s: dict[Stage, float]
    net_s: float
    committed_per_step: float | None
    drafts: DraftCounts | None
    considered: tuple[Considered, ...]
    basis: str
    not_covered: tuple[str, ...]
