"""Prompts of an exact number of tokens, the same for every server and never twice, so that no prefix cache helps."""

import random

from netgain.measuring.workload.item import Item

# Each of these with a space before it is one token of the default model, and so is the first word of a prompt.
FIRST = "The"
WORDS = """
time people water house night river garden morning road market village winter school letter light story train harbour mountain
window bread music summer island forest city friend doctor teacher paper kitchen evening street bridge field horse stone tree
sea wind rain snow fire door table book old new small long green white quiet early large young cold warm bright deep near under
over along after before while because often never always
"""


def items(count: int, prompt_tokens: int, output_tokens: int, seed: str) -> list[Item]:
    """`count` prompts; the same `seed` gives the same ones."""
    source, words = random.Random(seed), WORDS.split()

    def item(place: int) -> Item:
        text = " ".join([FIRST, *source.choices(words, k=prompt_tokens - 1)])
        return Item(id=f"{seed}-{place}", category="words", max_tokens=output_tokens, prompt=text, ignore_eos=True)

    return [item(place) for place in range(count)]
