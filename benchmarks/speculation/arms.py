"""An engine in this process for every way to draft, and a block of requests through one of them."""

import asyncio
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
from netgain.serving.engine.request import Request, SamplingParams
from netgain.serving.model.drafts.manifest import MANIFEST, Manifest, read_manifest
from netgain.serving.runtime.build import BuiltEngine, build_engine
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.training.prompts import Prompt, encoded

NONE = "none"
GOODPUT = "+goodput"  # ends the name of an arm whose control weighs what drafts cost
STEPS_KEPT = 64
LONGER = 2  # suffix drafts are as long as their match allows, so that they may be longer than those that always copy k
KV_TOKENS = 40_960
CURVE_S, CURVE_BATCH = 20.0, 32

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
    """Every way to draft by its name: a single trained folder is `draft`, several go by their kinds. Raises UsageError for a
    folder that cannot be read."""
    found: dict[str, Speculation] = {
        "ngram": {"method": "ngram", "k": k},
        "suffix": {"method": "suffix", "k": LONGER * k},
    }
    for folder in drafts:
        manifest = manifest_of(folder)
        kind = manifest.kind if manifest is not None else folder.name
        longest = k if manifest is None else min(k, max(1, manifest.positions))
        name = "draft" if len(drafts) == 1 else kind
        while name in found:
            name += "_2"
        found[name] = {"method": "draft", "draft": str(folder), "k": longest}
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

    async def run(self, items: Sequence[Item], concurrency: int, salt: str) -> Ran:
        """Answer `items`, `concurrency` of them at a time; nothing that another `salt` left in a cache is found.

        Raises Unavailable when a request cannot be answered.
        """
        engine, clock = self._built.engine, self._clock
        asked = [(f"{self.name}-{self._number + place}", item) for place, item in enumerate(items)]
        self._number += len(items)
        requests = deque(self._request(name, item, salt) for name, item in asked)
        said: dict[str, list[int]] = {name: [] for name, _ in asked}
        drafts, decode_s, running = DraftCounts(), 0.0, 0
        began_s = clock.now()
        while requests or engine.has_work:
            while requests and running < concurrency:
                engine.submit(msgspec.structs.replace(requests.popleft(), received_s=clock.now()))
                running += 1
            await asyncio.sleep(0)  # an engine of this process gives the loop no turn, in which signals are noticed
            for output in await engine.step():
                said[output.request_id] += output.tokens
                if output.finish_reason is None:
                    continue
                running -= 1
                if output.error is not None or output.trace is None or output.trace.first_token_s is None:
                    raise Unavailable(f"{self.name}: a request ended without an answer: {output.error}")
                drafts.merge(output.trace.drafts)
                decode_s += clock.now() - output.trace.first_token_s
        seconds = clock.now() - began_s
        tokens = sum(map(len, said.values()))
        return Ran(
            seconds=seconds,
            decode_s=decode_s,
            output_tokens=tokens,
            later_tokens=tokens - len(asked),
            drafts=drafts,
            answers=tuple(sha256(msgspec.json.encode(said[name])).hexdigest()[:16] for name, _ in asked),
        )

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
