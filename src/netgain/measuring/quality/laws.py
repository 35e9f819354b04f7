"""What a server said of each position of a text: the log-probability of the token there, and of the most likely ones."""

from collections.abc import Mapping

import msgspec

LOWEST = -9999.0  # servers write minus infinity so, which JSON cannot say; kept as it is, so that sums stay finite
_ABOVE_ONE = 1e-3  # log-probabilities are rounded; what lies further above 0 is none


class Law(msgspec.Struct, frozen=True, gc=False):
    """One position: `token` stands there with `logprob` (nats), `top` holds the most likely tokens, and `token` itself."""

    token: str
    logprob: float
    top: Mapping[str, float]

    @property
    def likeliest(self) -> frozenset[str]:
        """The most likely token; several where they are equally likely."""
        highest = max(self.top.values())
        return frozenset(token for token, value in self.top.items() if value == highest)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """An answer's positions in order; None where the server gave no law (nothing stands before the first token). `loaded`: what
    netgain says of KV that came from its tiers, where it was asked."""

    tokens: tuple[str, ...]
    laws: tuple[Law | None, ...]
    prompt_tokens: int | None
    loaded: "LoadedKV | None" = None


class LoadedKV(msgspec.Struct, frozen=True):
    """KV that a server loaded from its tiers: of how many tokens, in which forms (`raw`, or codecs, joined by +)."""

    loaded_tokens: int = 0
    codecs: str | None = None


class _Entry(msgspec.Struct, frozen=True):
    """A position in the form of chats, which llama.cpp also gives for completions."""

    token: str
    logprob: float | None = None
    id: int | None = None
    top_logprobs: list["_Entry"] = []

    def spelled(self, as_ids: bool) -> str:
        return f"token_id:{self.id}" if as_ids and self.id is not None else self.token


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float | None] | None] | None = None
    content: list[_Entry] | None = None


class _Choice(msgspec.Struct, frozen=True):
    logprobs: _Logprobs | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None


class _Account(msgspec.Struct, frozen=True):
    kv: LoadedKV | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]
    usage: _Usage | None = None
    netgain: _Account | None = None


def read_completion(body: bytes, as_ids: bool) -> Told | str:
    """The laws in an answer of /v1/completions, or why it holds none. `as_ids`: tokens were asked for as `token_id:N`."""
    try:
        answer = msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        return f"its answer is no completion ({error})"
    given = answer.choices[0].logprobs if answer.choices else None
    if given is None:
        return "it gives no log-probabilities"
    usage = None if answer.usage is None else answer.usage.prompt_tokens
    if given.content is not None:
        tokens = tuple(entry.spelled(as_ids) for entry in given.content)
        values = tuple(entry.logprob for entry in given.content)
        tops = tuple({o.spelled(as_ids): o.logprob for o in entry.top_logprobs} for entry in given.content)
    elif given.tokens is not None and given.token_logprobs is not None:
        tokens, values = tuple(given.tokens), tuple(given.token_logprobs)
        tops = tuple(top or {} for top in given.top_logprobs or [None] * len(tokens))
    else:
        return "it gives no log-probabilities"
    if not len(tokens) == len(values) == len(tops):
        return f"its lists differ in length ({len(tokens)} tokens, {len(values)} values, {len(tops)} lists)"
    laws: list[Law | None] = []
    for token, value, top in zip(tokens, values, tops, strict=True):
        if value is None:
            laws.append(None)
            continue
        known = {other: one for other, one in top.items() if one is not None and one > LOWEST}
        value = max(value, LOWEST)
        law = Law(token, value, {**known, token: value})
        if max(law.top.values()) > _ABOVE_ONE:
            return f"it says a log-probability of {max(law.top.values()):g}, which is above 0"
        laws.append(law)
    known_values = [law.logprob for law in laws if law is not None]
    if len(known_values) > 1 and not any(known_values):
        return "every log-probability is 0, so it does not compute them"
    loaded = None if answer.netgain is None else answer.netgain.kv
    return Told(tokens=tokens, laws=tuple(laws), prompt_tokens=usage, loaded=loaded)
