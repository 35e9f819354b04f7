"""Step-cost curves kept in the user's cache, one per subject, so that the next launch measures nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from netgain.cost import kept
from netgain.cost.step_cost import StepCost


class _File(msgspec.Struct, frozen=True):
    format: Literal[1]
    cost: StepCost


class StepCostStore:
    """A folder of curves. The subject is all that a curve depends on: machine, weights, types, kernels, threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, subject: Mapping[str, str]) -> StepCost | None:
        """The curve of exactly this subject; None when there is none, and for a damaged file or one of another format."""
        found = kept.read(kept.file_of(self._folder, subject), _File)
        return found.cost if found is not None and found.cost.subject == subject else None

    def save(self, cost: StepCost) -> None:
        """Replace the curve of its subject. Raises OSError."""
        kept.write(kept.file_of(self._folder, cost.subject), _File(1, cost))
