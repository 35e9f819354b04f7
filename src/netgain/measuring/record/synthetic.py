"""Made-up prompts with real structure: equal blocks of a recording become equal text, everything else differs."""

import hashlib
import random

from netgain.measuring.record.entry import Entry, Recording

BYTES_PER_TOKEN = 4  # of English text, where a recording knows only one of the two lengths

# common words that most tokenizers hold whole, so that a word with its space is about one token
_FREQUENT = (
    "the of and to in is was for on that with as at by from it he his an are be this which or had not but one have were "
    "their all they you her been has when who will more if no out so said what up its about into than them can only other "
    "new some could time these two may then do first any my now such like our over man me even most made after also did "
    "many before must through back years where much your way well down should because each just those people how too "
    "little state good very make world still own see men work long get here between both life being under never day same "
    "another know while last might us great old year off come since against go came right used take three"
)
_WORDS = _FREQUENT.split()


def synthetic_prompt(entry: Entry, recording: Recording) -> str | None:
    """A text of the entry's length whose beginning is shared exactly where the recording says so. None: length unknown."""
    in_tokens = recording.block_unit == "tokens"
    length = entry.prompt_size
    if length is None and entry.prompt_tokens is not None:
        length = entry.prompt_tokens if in_tokens else entry.prompt_tokens * BYTES_PER_TOKEN
    if not length:
        return None
    size = recording.block_size or 0
    pieces: list[str] = []
    done = 0
    for block in entry.blocks or () if size else ():
        wanted = min(size, length - done)
        if wanted <= 0:
            break
        pieces.append(_text(f"{recording.recording}/{block}", wanted, in_tokens))
        done += wanted
    if done < length:
        pieces.append(_text(f"{recording.recording}/{entry.id}", length - done, in_tokens))
    return "".join(pieces)


def _text(seed: str, length: int, in_tokens: bool) -> str:
    """The same text for the same seed; exactly `length` bytes, or `length` words."""
    drawn = random.Random(hashlib.sha256(seed.encode()).digest())
    if in_tokens:
        return "".join(f" {drawn.choice(_WORDS)}" for _ in range(length))
    words: list[str] = []
    missing = length
    while missing > 0:
        words.append(f" {drawn.choice(_WORDS)}")
        missing -= len(words[-1])
    return "".join(words)[:length]
