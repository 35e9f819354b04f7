"""Prompts as chained block ids under a secret key: they show what is shared, and nothing else."""

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

BLOCK_BYTES = 256  # about 64 tokens of English


class Hasher:
    """One per recording. The key lives in memory only, so ids cannot be turned back by hashing guesses."""

    def __init__(self, block_bytes: int = BLOCK_BYTES, key: bytes | None = None) -> None:
        self.block_bytes = block_bytes
        self._key = key or secrets.token_bytes(32)

    def blocks(self, data: bytes) -> tuple[int, ...]:
        """64-bit ids of the full blocks of `data`; each depends on everything before it. A partial last block has none."""
        return self._chain(data[at : at + self.block_bytes] for at in range(0, len(data), self.block_bytes))

    def token_blocks(self, ids: list[int], block_tokens: int) -> tuple[int, ...]:
        """The same over token ids, for sources that know them."""
        size = block_tokens * 8
        data = b"".join(token.to_bytes(8, "little", signed=True) for token in ids)
        return self._chain((data[at : at + size] for at in range(0, len(data), size)), size)

    def name(self, purpose: str, text: str) -> str:
        """A short id for a tenant or a session; the same text under another purpose has another."""
        return hashlib.blake2b(
            text.encode("utf-8", "surrogateescape"), key=self._key, digest_size=8, person=purpose.encode()[:16]
        ).hexdigest()

    def _chain(self, pieces: Iterable[bytes], size: int | None = None) -> tuple[int, ...]:
        found: list[int] = []
        parent = b""
        for piece in pieces:
            if len(piece) < (size or self.block_bytes):
                break
            parent = hashlib.blake2b(parent + piece, key=self._key, digest_size=8).digest()
            found.append(int.from_bytes(parent, "little"))
        return tuple(found)


def canonical(body: Mapping[str, Any]) -> bytes | None:
    """The prompt of a request body as bytes, so that a longer conversation begins with the bytes of the shorter one.

    Tools come first, as in chat templates, then `system` or `instructions` where the API has it beside the messages, then each
    message as compact JSON with sorted names and a line end. A text prompt is itself in UTF-8, token ids are eight bytes
    each. None for several prompts, and for bodies without one.
    """
    messages = body.get("messages", body.get("input"))
    beside = [
        body[name] for name in ("system", "instructions") if isinstance(body.get(name), str | list) and body[name]
    ]
    if beside and isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        tools = body.get("tools")
        head = [tools, *beside] if isinstance(tools, list) and tools else beside
        encode = msgspec.json.Encoder(order="deterministic").encode
        return b"".join(encode(part) + b"\n" for part in (*head, *messages))
    prompt = body.get("prompt", body.get("input"))
    match prompt:
        case [str() as only] | (str() as only):
            return only.encode("utf-8", "surrogatepass")
        case [list() as ids] | (list() as ids) if ids and all(type(token) is int for token in ids):
            return b"".join((token & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little") for token in ids)
    return None


def prompt_count(body: Mapping[str, Any]) -> int | None:
    """How many prompts a body holds; None where it has none."""
    prompt = body.get("prompt", body.get("messages", body.get("input")))
    if "messages" in body:
        return 1
    match prompt:
        case str():
            return 1
        case [int(), *_]:
            return 1
        case [dict(), *_]:
            return 1
        case [_, *_]:
            return len(prompt)
    return None
