"""What the experiment on KV tiers is asked to do, and how much the quick and the full form measure."""

import math
from pathlib import Path

import msgspec

from netgain.cost import quantity
from netgain.errors import UsageError

BLOCK_TOKENS = 16
ROOM = 1.5  # of one request: so much KV the device has, and prompts that are asked by turns push each other out
FEWEST_PROMPTS = 3  # two others have to come between a prompt and its return
FEWEST_TOKENS = 64
HEARTBEAT_S = 0.1  # how old the servers' counters may be
# settings of the server that the experiment itself decides on
_OWN = (
    "engine.cache.kv_tokens",
    "engine.cache.prefix_caching",
    "engine.cache.block_tokens",
    "engine.kv.tiers",
    "engine.kv.policy",
    "engine.step_cost.refresh",
    "fleet.heartbeat_s",
)


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """In each of `repeats` starts of the servers, `prompts` prompts of `tokens` tokens are asked in every step."""

    tokens: int
    prompts: int
    repeats: int


QUICK = Form(tokens=512, prompts=4, repeats=2)
FULL = Form(tokens=1024, prompts=6, repeats=6)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens`, `prompts` and `repeats` None: as the form has them. `dram` and `disk` are sizes of the tiers; `bandwidth` and
    `latency` shape the link before both (None: as this machine is). `folder`: where the disk tier lies for as long as the
    experiment runs (None: in `output`). `serve_flags` go to every server. Raises UsageError where a value cannot be meant."""

    output: Path
    model: str = "default"
    quick: bool = False
    tokens: int | None = None
    prompts: int | None = None
    repeats: int | None = None
    output_tokens: int = 8
    dram: str = "1GiB"
    disk: str = "2GiB"
    bandwidth: str | None = None
    latency: str | None = None
    folder: Path | None = None
    serve_flags: tuple[str, ...] = ()
    seed: int = 0
    start_timeout_s: float = 300.0
    request_timeout_s: float = 120.0

    def __post_init__(self) -> None:
        form = self.form
        if form.tokens < FEWEST_TOKENS:
            raise UsageError(
                f"prompts of {form.tokens} tokens have too few blocks to load; give at least {FEWEST_TOKENS}"
            )
        if form.prompts < FEWEST_PROMPTS:
            raise UsageError(
                f"{form.prompts} prompts cannot push each other out of the device; give at least {FEWEST_PROMPTS} (--prompts)"
            )
        if form.repeats < 1 or form.prompts * form.repeats < 2:
            raise UsageError(f"{form.repeats} repeats measure nothing; give at least 1 (--repeats)")
        if self.output_tokens < 2:
            raise UsageError(f"answers of {self.output_tokens} tokens show no decoding; give at least 2 (--max-tokens)")
        if not 0 <= self.seed < 2**32:
            raise UsageError(f"the seed is {self.seed}; it must lie in [0, 2^32)")
        for text in (self.dram, self.disk):
            if quantity.size(text).value <= 0:
                raise UsageError(f"a tier of {text} holds nothing; give a size such as 1GiB")
        if self.bandwidth is not None and quantity.bandwidth(self.bandwidth).value <= 0:
            raise UsageError(f"a bandwidth of {self.bandwidth} moves nothing; give one such as 100MB/s")
        if self.latency is not None:
            quantity.duration(self.latency)
        for flag in self.serve_flags:
            name = flag.partition("=")[0].strip()
            if name in _OWN:
                raise UsageError(
                    f"{name} is what the experiment itself changes between its servers; leave it out (--set)"
                )

    @property
    def form(self) -> Form:
        """How much is measured, after what was asked for."""
        base = QUICK if self.quick else FULL
        return Form(
            tokens=base.tokens if self.tokens is None else self.tokens,
            prompts=base.prompts if self.prompts is None else self.prompts,
            repeats=base.repeats if self.repeats is None else self.repeats,
        )

    @property
    def longest_tokens(self) -> int:
        """Of one request, answer included; prompts are as long as asked within a few hundredths."""
        return math.ceil(1.1 * self.form.tokens) + self.output_tokens

    @property
    def room_tokens(self) -> int:
        """KV that each server's device has room for."""
        return BLOCK_TOKENS * math.ceil(ROOM * self.longest_tokens / BLOCK_TOKENS)
