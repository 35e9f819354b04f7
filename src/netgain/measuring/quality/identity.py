"""Whether two outputs are the same, token for token, and where they part if they are not."""

from collections.abc import Sequence

import msgspec


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two outputs side by side. `first_difference` is the position of the first unequal token, or the shorter length
    when one output is the beginning of the other; None when they are identical."""

    left_tokens: int
    right_tokens: int
    first_difference: int | None

    @property
    def identical(self) -> bool:
        return self.first_difference is None


def compare_outputs(left: Sequence[int | str], right: Sequence[int | str]) -> Comparison:
    """Compare two outputs given as token ids (or as words or characters where ids are not known)."""
    shorter = min(len(left), len(right))
    differing = next((place for place in range(shorter) if left[place] != right[place]), None)
    if differing is None and len(left) != len(right):
        differing = shorter
    return Comparison(left_tokens=len(left), right_tokens=len(right), first_difference=differing)
