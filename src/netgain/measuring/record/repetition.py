"""How much of an answer repeats what stood before it, by words: a hint for drafting by copying that needs no tokenizer."""

import re

_WORD = re.compile(r"\w+|[^\w\s]")
_FEWEST = 8  # words; below this a share says nothing
_MOST = 20_000


def copied_share(prompt: str, answer: str) -> float | None:
    """Share of the answer's words that follow the last occurrence of the two words before them. None for a short answer.

    It is the acceptance of single-word drafts under an oracle of one look-up; tokens are shorter than words, so an n-gram
    proposer's own acceptance differs, and only a replay on token ids decides.
    """
    before = _WORD.findall(prompt)[-_MOST:]
    words = before + _WORD.findall(answer)[:_MOST]
    if len(words) - len(before) < _FEWEST:
        return None
    following: dict[tuple[str, str], str] = {}
    hits = 0
    for at in range(2, len(words)):
        pair = (words[at - 2], words[at - 1])
        if at >= len(before):
            hits += following.get(pair) == words[at]
        following[pair] = words[at]
    return hits / (len(words) - len(before))
