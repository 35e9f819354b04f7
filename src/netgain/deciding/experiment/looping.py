"""Text that repeats itself: small models fall into loops, which flatters drafts that copy, so it must be said."""

from collections.abc import Sequence

LONGEST_PERIOD = 64
REPEATS = 3  # a stretch loops when it says the same thing at least this often in a row
SHORTEST_LOOP = 16  # tokens; below it, repetition is ordinary (a row of spaces, "1, 1, 1")
LOOPED_SHARE = 0.25  # an output with at least this share of looping tokens counts as looped


def looping_share(tokens: Sequence[int | str]) -> float:
    """Share of `tokens` that stand in a stretch of one period (up to 64 tokens) repeated at least three times."""
    if not tokens:
        return 0.0
    marked = bytearray(len(tokens))
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // REPEATS) + 1):
        run = 0  # how many tokens in a row equal the one a period earlier
        for at in range(period, len(tokens) + 1):
            if at < len(tokens) and tokens[at] == tokens[at - period]:
                run += 1
                continue
            length = run + period
            if run and length >= REPEATS * period and length >= SHORTEST_LOOP:
                marked[at - length : at] = b"\x01" * length
            run = 0
    return sum(marked) / len(tokens)


def is_looped(tokens: Sequence[int | str]) -> bool:
    """Whether so much of the output loops that a copying draft profits from the model's defect."""
    return looping_share(tokens) >= LOOPED_SHARE
