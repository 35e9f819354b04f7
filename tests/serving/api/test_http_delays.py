"""Known delays, put into known places around a real engine process, appear in the right stage of the request's record."""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("torch")

from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import Stage
from netgain.serving.api.app import build_app
from netgain.serving.api.metrics import Metrics
from netgain.serving.api.served import ServedModel
from netgain.serving.fleet.fleet import Fleet
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.tokenizer import Tokenizer
from netgain.serving.runtime.config import ServerConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

DELAY_S = 0.4
ATTEMPTS = 15


class SlowTokenizer(Tokenizer):
    """A tokenizer that takes its time over whole texts, or over every token of an answer, when told to."""

    slow_text = False
    slow_tokens = False
    spent_s = 0.0

    def encode(self, text: str, start: bool = False) -> list[int]:
        self._delay(self.slow_text)
        return super().encode(text, start)

    def token_bytes(self, token: int, keep_control: bool = False) -> bytes:
        self._delay(self.slow_tokens)
        return super().token_bytes(token, keep_control)

    def _delay(self, slow: bool) -> None:
        if slow:
            began_s = time.monotonic()
            time.sleep(DELAY_S)
            self.spent_s += time.monotonic() - began_s


class Served:
    """The HTTP application over a fleet of one real engine process, called without a socket in between."""

    def __init__(self, app: Any, tokenizer: SlowTokenizer, metrics: Metrics) -> None:
        self.app = app
        self.tokenizer = tokenizer
        self.metrics = metrics

    async def ask(
        self, *, upload_s: float = 0.0, accept_s: float = 0.0, max_tokens: int
    ) -> tuple[RequestRecord, float]:
        """One streamed completion, whose client sends half of its request `upload_s` late and takes `accept_s` for each
        part of the answer. Returns its record, and how long this client really made the server wait."""
        body = json.dumps({"prompt": "l", "max_tokens": max_tokens, "temperature": 0, "stream": True}).encode()
        parts = [body[:20], body[20:]]
        waited_s = 0.0

        async def receive() -> dict[str, Any]:
            nonlocal waited_s
            if not parts:
                await _forever()
            if len(parts) == 1:
                waited_s += await _sleep(upload_s)
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

        async def send(message: dict[str, Any]) -> None:
            nonlocal waited_s
            if message.get("body"):
                waited_s += await _sleep(accept_s)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await self.app(scope, receive, send)
        return self.metrics.collector.requests[-1], waited_s


async def _sleep(seconds: float) -> float:
    began_s = time.monotonic()
    if seconds:
        await asyncio.sleep(seconds)
    return time.monotonic() - began_s


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(chain_model: Any) -> AsyncIterator[Served]:
    config = ServerConfig.model_validate(
        {"engine": {"model": {"source": str(chain_model.folder), "kernels": "torch", "threads": 1}}}
    )
    checkpoint = open_checkpoint(chain_model.folder)
    tokenizer = SlowTokenizer(checkpoint.tokenizer.spec, "the chain model")
    fleet = Fleet(config.engine, config.fleet)
    await fleet.start()
    try:
        model = ServedModel(dataclasses.replace(checkpoint, tokenizer=tokenizer), fleet.info)
        metrics = Metrics(model, None)
        yield Served(build_app(config, fleet, model, metrics), tokenizer, metrics)
        metrics.close()
    finally:
        await fleet.close()


def _faults(record: RequestRecord, stage: Stage, injected_s: float) -> dict[str, bool]:
    """Which of the three promises the record breaks."""
    total_s = record.finished_s - record.received_s
    return {
        "in the stage": abs(record.stages.get(stage, 0.0) - injected_s) > 0.05 * injected_s,
        "in others": total_s - record.stages.get(stage, 0.0) > 0.1 * total_s,
        "unattributed": record.stages.get(Stage.UNATTRIBUTED, 0.0) > 0.01 * total_s,
    }


def _assert_one_is_right(attempts: Sequence[tuple[RequestRecord, Stage, float]]) -> None:
    """Other work on the machine may stop any of the processes anywhere; a wrong label is wrong every time."""
    told = [f"{injected_s} s injected into {stage.value}: {record.stages}" for record, stage, injected_s in attempts]
    assert any(not any(_faults(*attempt).values()) for attempt in attempts), "\n".join(told)


async def test_a_slow_tokenizer_shows_as_tokenise(served: Served) -> None:
    attempts = []
    served.tokenizer.slow_text, served.tokenizer.slow_tokens = True, False
    for _ in range(ATTEMPTS):
        before_s = served.tokenizer.spent_s
        record, _ = await served.ask(max_tokens=2)
        attempts.append((record, Stage.TOKENISE, served.tokenizer.spent_s - before_s))
        if not any(_faults(*attempts[-1]).values()):
            break
    _assert_one_is_right(attempts)


async def test_slow_making_of_text_shows_as_respond(served: Served) -> None:
    attempts = []
    served.tokenizer.slow_text, served.tokenizer.slow_tokens = False, True
    for _ in range(ATTEMPTS):
        before_s = served.tokenizer.spent_s
        record, _ = await served.ask(max_tokens=2)
        attempts.append((record, Stage.RESPOND, served.tokenizer.spent_s - before_s))
        if not any(_faults(*attempts[-1]).values()):
            break
    _assert_one_is_right(attempts)


@pytest.mark.parametrize("side", ["upload_s", "accept_s"])
async def test_a_slow_client_shows_as_client_blocked(served: Served, side: str) -> None:
    attempts = []
    served.tokenizer.slow_text = served.tokenizer.slow_tokens = False
    for _ in range(ATTEMPTS):
        record, waited_s = await served.ask(**{side: DELAY_S}, max_tokens=1)
        attempts.append((record, Stage.CLIENT_BLOCKED, waited_s))
        if not any(_faults(*attempts[-1]).values()):
            break
    _assert_one_is_right(attempts)
