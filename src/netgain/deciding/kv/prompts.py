"""The prompts of the experiment: made-up text of a wanted number of tokens, of which no two begin alike unless they are to."""

import random
from http import HTTPStatus

import aiohttp
import msgspec

from netgain.deciding.experiment.arm import Arm
from netgain.errors import Unavailable
from netgain.measuring.workload.item import Item

MIXED = 8  # prompts of a round at a low hit rate; the last begins like the first
_LENGTHS = (1.0, 0.5, 0.25, 0.5, 0.25, 0.5, 0.25)  # of the others, as shares of the full length
_SHARED = 0.5  # of the first prompt is the last one's beginning
_SAMPLE_WORDS = 400
_TIMEOUT_S = 30.0
_TEXT = (
    "the harbour opens at six in morning and ferry leaves every ninety minutes while bicycles travel free of charge on "
    "weekdays visitors may rest under old trees near river where boats are painted blue or green before winter each captain "
    "writes down weather cargo names of passengers how long crossing took what was repaired"
)
_WORDS = tuple(_TEXT.split())


class _Tokenized(msgspec.Struct):
    count: int


class Writer:
    """Writes texts of about a wanted number of tokens; `seed` decides the words."""

    def __init__(self, tokens_per_word: float, seed: int) -> None:
        self._tokens_per_word = tokens_per_word
        self._random = random.Random(seed)

    def text(self, tokens: float, beginning: str = "") -> str:
        """`beginning`, then so many tokens that begin like no other text."""
        words = [
            f"{self._random.getrandbits(48):x}",
            *(self._random.choice(_WORDS) for _ in range(self._count(tokens))),
        ]
        return f"{beginning} {' '.join(words)}".strip()

    def head(self, text: str, share: float) -> str:
        """The first `share` of a text's words."""
        words = text.split()
        return " ".join(words[: round(share * len(words))])

    def mixed(self, tokens: int, rounds: int) -> list[str]:
        """MIXED texts per round, of which the last begins like the first."""
        found: list[str] = []
        for _ in range(rounds):
            texts = [self.text(share * tokens) for share in _LENGTHS]
            shared = self.text((1.0 - _SHARED) * tokens, self.head(texts[0], _SHARED))
            found += [*texts, shared]
        return found

    def _count(self, tokens: float) -> int:
        return max(1, round(tokens / self._tokens_per_word))


def items(texts: list[str], tag: str, output_tokens: int) -> tuple[Item, ...]:
    """As requests whose answers all have the same length."""
    return tuple(
        Item(
            id=f"{tag}-{place}",
            category=tag,
            prompt=text,
            max_tokens=output_tokens,
            temperature=0.0,
            ignore_eos=True,
        )
        for place, text in enumerate(texts)
    )


async def tokens_per_word(arm: Arm, model: str) -> float:
    """Of such texts, as the server's tokenizer has it. Raises Unavailable."""
    sample, url = Writer(1.0, 0).text(_SAMPLE_WORDS), f"{arm.url}/tokenize"
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        body = {"model": model, "prompt": sample}
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=arm.headers) as session,
            session.post(url, json=body) as answer,
        ):
            data = await answer.read()
            if answer.status != HTTPStatus.OK:
                raise Unavailable(f"{url} answered {answer.status}: {data[:200].decode(errors='replace')}")
        return msgspec.json.decode(data, type=_Tokenized).count / len(sample.split())
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise Unavailable(f"{url} did not tell how many tokens a text has ({error!r})") from error
