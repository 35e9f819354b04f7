"""Asks an OpenAI-compatible server how likely it finds given texts (teacher forcing), and what it says next on its own.

Any server whose /v1/completions takes `echo` with `logprobs` can be asked: netgain, vLLM, SGLang. The prompt comes back
with the law of each of its positions. Where the server can, tokens are asked for as ids, since different tokens may be
written alike.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import msgspec

from netgain.measuring.client.chunk import error_message
from netgain.measuring.client.endpoint import base_url, joins_chunks, list_models
from netgain.measuring.quality.laws import Law, LoadedKV, Told, read_completion
from netgain.measuring.quality.texts import Text

TOP = 20  # most likely tokens per position, the most that OpenAI's fields offer
_FORMS = ((TOP, True), (TOP, False), (5, False), (1, False))  # tried in turn: how many, and whether tokens as ids


class Form(msgspec.Struct, frozen=True):
    """How a server can be asked: for how many tokens per position, and whether they are written as ids."""

    top: int
    as_ids: bool

    def with_other(self, other: "Form") -> "Form":
        """What both servers can do, so that their answers can be laid side by side."""
        return Form(min(self.top, other.top), self.as_ids and other.as_ids)


class Scored(msgspec.Struct, frozen=True, kw_only=True):
    """One text with the laws of its positions from the first that has one, or of its later part alone. `tokens` are all of the
    prompt. `loaded`: what stood before came from KV tiers."""

    text: Text
    tokens: tuple[str, ...]
    laws: tuple[Law, ...]
    loaded: LoadedKV | None = None

    @property
    def partial(self) -> bool:
        return len(self.laws) < len(self.tokens) - 1


class Unscored(msgspec.Struct, frozen=True, kw_only=True):
    """A text, or a whole server, that could not be scored, and why."""

    name: str
    reason: str


class Teacher:
    """One server that is asked. Use as an async context manager; raises UsageError for a bad URL, Unavailable on entry when no
    server answers there."""

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        timeout_s: float = 120.0,
        concurrency: int = 2,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.base = base_url(url)
        self.model = model or ""
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.headers = headers or {}
        self._places = asyncio.Semaphore(concurrency)
        self.lossy_tiers = False  # whether what it loads from KV tiers may be other numbers than it stored
        self.joins_chunks = False  # whether it takes chunks of prompts from where they were computed apart

    async def __aenter__(self) -> "Teacher":
        self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self.headers)
        try:
            cards = await list_models(self._session, self.base)
            self.model = self.model or (cards[0].id if cards else "")
            self.joins_chunks = joins_chunks(cards)
            self.lossy_tiers = any(bool((card.netgain or {}).get("kv_lossy")) for card in cards)
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def find_form(self, text: Text, *, of_prompt: bool) -> Form | str:
        """The best form in which this server gives laws (of a prompt, or only of its own tokens), or why in none."""
        reason = ""
        for top, as_ids in _FORMS:
            form = Form(top, as_ids)
            found = await (self.score(text, form) if of_prompt else self.say(text, form, 2))
            if not isinstance(found, Unscored):
                return form
            reason = reason or found.reason
        return reason

    async def score(self, text: Text, form: Form) -> Scored | Unscored:
        """The law of every position of the text but those that nothing stands before."""
        told = await self.ask(text, form, max_tokens=1, echo=True)
        if isinstance(told, str):
            return Unscored(name=text.name, reason=told)
        if told.prompt_tokens is None:
            return Unscored(name=text.name, reason="it does not say how many tokens the prompt has")
        tokens, laws = told.tokens[: told.prompt_tokens], told.laws[: told.prompt_tokens]
        if len(tokens) < told.prompt_tokens:
            return Unscored(
                name=text.name,
                reason=f"it gives {len(tokens)} of the prompt's {told.prompt_tokens} tokens: prompts are not echoed",
            )
        first = next((place for place, law in enumerate(laws) if law is not None), len(laws))
        scored = tuple(law for law in laws[first:] if law is not None)
        if len(scored) != len(laws) - first or first > 1 or not scored:
            return Unscored(name=text.name, reason=f"{len(laws) - len(scored)} of {len(laws)} positions have no value")
        return Scored(text=text, tokens=tokens, laws=scored)

    async def say(self, text: Text, form: Form, max_tokens: int) -> tuple[Law, ...] | Unscored:
        """What the server says after the text, greedily, with the law of each of its tokens."""
        told = await self.ask(text, form, max_tokens=max_tokens, echo=False)
        if isinstance(told, str):
            return Unscored(name=text.name, reason=told)
        return tuple(law for law in told.laws if law is not None)

    async def score_all(
        self,
        texts: Sequence[Text],
        form: Form,
        on_done: Callable[[str], None] | None = None,
        score: "Score | None" = None,
    ) -> list[Scored | Unscored]:
        """All texts, in their order, each by `score` (by default whole)."""

        async def one(text: Text) -> Scored | Unscored:
            async with self._places:
                found = await (self.score(text, form) if score is None else score(self, text, form))
            if on_done is not None:
                on_done(text.name)
            return found

        return list(await asyncio.gather(*map(one, texts)))

    async def ask(
        self, text: Text, form: Form, *, max_tokens: int, echo: bool, netgain: dict[str, Any] | None = None
    ) -> Told | str:
        """One answer, or why there is none. `netgain`: fields for netgain's own servers."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": text.prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logprobs": form.top,
        }
        if echo:
            body["echo"] = True
        if netgain is not None:
            body["netgain"] = netgain
        if form.as_ids:
            body["return_tokens_as_token_ids"] = True
        try:
            async with self._session.post(
                f"{self.base}/v1/completions",
                data=msgspec.json.encode(body),
                headers={"Content-Type": "application/json"},
            ) as response:
                answer = await response.read()
                if response.status != 200:
                    return f"status {response.status}: {error_message(answer[:65536])}"
        except TimeoutError:
            return "it did not answer in time"
        except (aiohttp.ClientError, OSError) as error:
            return f"the connection failed: {type(error).__name__} {error}".rstrip()
        return read_completion(answer, form.as_ids)


Score = Callable[[Teacher, Text, Form], Awaitable[Scored | Unscored]]
