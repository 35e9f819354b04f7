"""When several claims are tested at once: the level at which each may be, so that all together err no more often than one.

Holm's step-down method (S. Holm, "A simple sequentially rejective multiple test procedure", 1979): it holds for tests that
depend on each other in any way, as metrics of the same requests do, and never finds less than Bonferroni's.
Benjamini-Hochberg finds more, but only bounds the share of false claims; one false adoption is already one too many.
"""

from collections.abc import Sequence


def holm_levels(p_values: Sequence[float], level: float) -> tuple[float, ...]:
    """The level for each test, in the order given: it is shown when its p value is at most that.

    The smallest p value is held to level / n, the next to level / (n - 1), and so on; from the first that fails on, all
    share its level, which they fail, too. Any error among the n tests has at most probability `level`.
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    levels = [0.0] * len(p_values)
    allowed, failed = 0.0, False
    for rank, place in enumerate(order):
        if not failed:
            allowed = level / (len(p_values) - rank)
            failed = p_values[place] > allowed
        levels[place] = allowed
    return tuple(levels)
