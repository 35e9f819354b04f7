"""An engine in this process for every way to draft, and a block of requests through one of them."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from netgain.errors import Unavailable
from netgain.ledger.clock import WallClock
from netgain.ledger.collector import Collector
from netgain.ledger.records import DraftCounts
from netgain.measuring.workload.item import Item
from netgain.serving.engine.engine import Engine
from netgain.serving.engine.request import Output, Request, SamplingParams
from netgain.serving.model.drafts.manifest import MANIFEST, Manifest, read_manifest
from netgain.serving.runtime.build import BuiltEngine, build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.training.prompts import Prompt, encoded

NONE = "none"
GOODPUT = "+goodput"  # ends the name of an arm whose control weighs what drafts cost
STEPS_KEPT = 64
LONGER = 2  # suffix drafts are as long as their match allows, so that they may be longer than those that always copy k
KV_TOKENS = 40_960
DRAFT_DTYPE = "int8"
CURVE_S, CURVE_BATCH = 20.0, 32
SLICE_S = 0.1  # some steps: what another engine left in the processor's caches is paid for by the first of them

Speculation = Mapping[str, object]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One block. `decode_s` is the sum over its requests of the time behind their first tokens, `later_tokens` the tokens
    that came in it; `answers` digests of the tokens, in the order asked."""

    seconds: float
    decode_s: float
    output_tokens: int
    later_tokens: int
    drafts: DraftCounts
    answers: tuple[str, ...]

    @property
    def iterations(self) -> int:
        """Decode steps of its requests: those that verified drafts, and those that committed one token each."""
        return self.drafts.steps + self.later_tokens - self.drafts.committed


def proposers(drafts: Sequence[Path], k: int) -> dict[str, Speculation]:
    """Every way to draft by its name; trained folders go by their kinds (feature, medusa, layers), models by their folders.
    Raises UsageError for a folder that cannot be read."""
    found: dict[str, Speculation] = {
        "ngram": {"method": "ngram", "k": k},
        "suffix": {"method": "suffix", "k": LONGER * k},
    }
    for folder in drafts:
        manifest = manifest_of(folder)
        kind = manifest.kind if manifest is not None else folder.name
        longest = k if manifest is None else min(k, max(1, manifest.positions))
        name = kind
        while name in found:
            name += "_2"
        # heads are kept so anyway; in its file's bf16 a model of few layers would be as dear as the whole one in 4 bits
        kept = {} if manifest is None else {"draft_dtype": DRAFT_DTYPE}
        found[name] = {"method": "draft", "draft": str(folder), "k": longest, **kept}
    return found


def manifest_of(folder: Path) -> Manifest | None:
    """None for a model that is no trained draft."""
    return read_manifest(folder) if (folder / MANIFEST).is_file() else None


class Arm:
    """One engine. Not used by two blocks at once."""

    def __init__(self, name: str, model: Mapping[str, object], speculation: Speculation, threads: int | None) -> None:
        """Raises UsageError for what does not fit together."""
        self.name = name
        self._clock = WallClock()
        tree: dict[str, Any] = {
            "model": {**model, "threads": threads},
            "cache": {"kv_tokens": KV_TOKENS},
            "step_cost": {"refresh": "never"},
            "speculation": {**speculation, "verifier": "coupled"} if speculation else {},
        }
        self._built: BuiltEngine = build_engine(
            EngineConfig.model_validate(tree), self._clock, Collector(steps_kept=STEPS_KEPT)
        )
        self._number = 0

    async def measure_steps(self, budget_s: float = CURVE_S) -> None:
        """What the goodput control decides by; kept for the arms that are built after this one."""
        await self._built.engine.measure_step_cost(budget_s, CURVE_BATCH)

    @property
    def knows_steps(self) -> bool:
        """Whether it has a curve of step costs, which the goodput control needs to decide for any draft."""
        return self._built.engine.step_curve.cost is not None

    def block(self, items: Sequence[Item], concurrency: int, salt: str) -> "Block":
        """`items`, `concurrency` of them at a time; nothing that another `salt` left in a cache is found."""
        asked = [self._request(f"{self.name}-{self._number + place}", item, salt) for place, item in enumerate(items)]
        self._number += len(items)
        return Block(self.name, self._built.engine, self._clock, asked, concurrency)

    def close(self) -> None:
        self._built.engine.close()

    @property
    def info(self) -> Mapping[str, Any]:
        return self._built.info

    def _request(self, name: str, item: Item, salt: str) -> Request:
        loaded = self._built.loaded
        prompt = Prompt(messages=tuple(map(msgspec.to_builtins, item.messages)), text=item.prompt)
        sampling = SamplingParams(
            max_tokens=item.max_tokens,
            temperature=item.temperature,
            top_p=1.0 if item.top_p is None else item.top_p,
            top_k=0 if item.top_k is None else item.top_k,
            seed=item.seed or 0,
            ignore_eos=item.ignore_eos,
        )
        ids = tuple(encoded(prompt, loaded.tokenizer, loaded.template))
        return Request(id=name, prompt=ids, sampling=sampling, salt=salt.encode(), received_s=0.0)


class Block:
    """Requests that go through one engine, slice by slice. Its time counts only while a slice runs, so that blocks of several
    arms can take turns within a fraction of a second: what disturbs the machine disturbs them alike."""

    def __init__(
        self, name: str, engine: Engine, clock: WallClock, requests: Sequence[Request], concurrency: int
    ) -> None:
        self._name, self._engine, self._clock, self._concurrency = name, engine, clock, concurrency
        self._waiting = deque(requests)
        self._running = 0
        self._said: dict[str, list[int]] = {request.id: [] for request in requests}
        self._first_s: dict[str, float] = {}  # when its first token came, in the block's own time
        self._drafts, self._decode_s, self._spent_s = DraftCounts(), 0.0, 0.0

    @property
    def over(self) -> bool:
        return not self._waiting and not self._engine.has_work

    async def run(self, seconds: float = math.inf) -> None:
        """Go on for about so long, at least a step, or to the end. Raises Unavailable when a request cannot be answered."""
        engine, clock = self._engine, self._clock
        began_s = clock.now()
        while not self.over:
            while self._waiting and self._running < self._concurrency:
                engine.submit(msgspec.structs.replace(self._waiting.popleft(), received_s=clock.now()))
                self._running += 1
            await asyncio.sleep(0)  # an engine of this process gives the loop no turn, in which signals are noticed
            outputs = await engine.step()
            now_s = clock.now()
            for output in outputs:
                self._take(output, self._spent_s + now_s - began_s)
            if now_s - began_s >= seconds:
                break
        self._spent_s += clock.now() - began_s

    @property
    def ran(self) -> Ran:
        """Of a block that is over."""
        tokens = sum(map(len, self._said.values()))
        return Ran(
            seconds=self._spent_s,
            decode_s=self._decode_s,
            output_tokens=tokens,
            later_tokens=tokens - len(self._said),
            drafts=self._drafts,
            answers=tuple(sha256(msgspec.json.encode(said)).hexdigest()[:16] for said in self._said.values()),
        )

    def _take(self, output: Output, at_s: float) -> None:
        self._said[output.request_id] += output.tokens
        if output.tokens:
            self._first_s.setdefault(output.request_id, at_s)
        if output.finish_reason is None:
            return
        self._running -= 1
        if output.error is not None or output.trace is None or output.request_id not in self._first_s:
            raise Unavailable(f"{self._name}: a request ended without an answer: {output.error}")
        self._drafts.merge(output.trace.drafts)
        self._decode_s += at_s - self._first_s[output.request_id]


async def by_turns(blocks: Sequence[Block], slice_s: float = SLICE_S) -> None:
    """Run all of them to their ends, a slice of each after the other, in turning order."""
    order = list(blocks)
    while order := [block for block in order if not block.over]:
        for block in order:
            await block.run(slice_s)
        order.reverse()
