"""How much of an output is a loop. Small models repeat themselves, which flatters drafts that copy, so it must be said."""

from collections.abc import Sequence

LONGEST_PERIOD = 64  # tokens or words: a loop over a longer stretch is a repeated paragraph, and may be the task
REPEATS = 3  # the same stretch this often in a row is a loop; twice is emphasis, or a table's two equal rows
SHORTEST_LOOP = 16  # a shorter stretch is ordinary: a ruler of dashes, an indentation, "no, no, no"
LOOPED_SHARE = 0.25  # from this share on, results are also given without the output


def looping_share(tokens: Sequence[int | str]) -> float:
    """Share of `tokens` (ids or words) that stand in a loop, between 0 and 1; 0 for an empty output.

    A loop is a stretch of at least 16 tokens that consists of one period of at most 64 tokens, at least three times in
    a row (the last repeat may be cut). Takes len(tokens) x 64 comparisons at most.
    """
    count = len(tokens)
    if not count:
        return 0.0
    looping = bytearray(count)
    for period in range(1, min(LONGEST_PERIOD, count // REPEATS) + 1):
        begin = 0  # of the stretch in which each token equals the one a period earlier
        for place in range(period, count + 1):
            if place < count and tokens[place] == tokens[place - period]:
                continue
            length = place - begin
            if length >= max(REPEATS * period, SHORTEST_LOOP):
                looping[begin:place] = b"\x01" * length
            begin = place - period + 1
    return sum(looping) / count


def is_looped(tokens: Sequence[int | str]) -> bool:
    """Whether so much of the output loops that a draft which copies profits from the model's defect."""
    return looping_share(tokens) >= LOOPED_SHARE
