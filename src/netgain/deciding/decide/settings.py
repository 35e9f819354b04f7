"""What a decision is asked about, and how much measuring the quick and the full form do."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import msgspec

from netgain.cost.price import Price
from netgain.deciding.experiment.arms.devices import devices_written
from netgain.deciding.experiment.arms.hooks import Hooks
from netgain.deciding.experiment.arms.starting import Starting
from netgain.deciding.experiment.resampling import FEWEST_UNITS
from netgain.deciding.experiment.verdict import MINIMUM_EFFECT
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.codec_asked import CodecAsked
from netgain.deciding.technique.kv_compression_switches import compression_switch
from netgain.deciding.technique.tier_asked import TierAsked
from netgain.deciding.technique.tiering_switches import tiering_switch
from netgain.errors import UsageError
from netgain.measuring.observe.names import Engine
from netgain.measuring.quality.texts import BUNDLED
from netgain.wording import count


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured. In each of `starts` of the servers `groups` of `group_size` prompts are measured A B B A.

    `output_tokens` caps outputs (None: as the workload says). `control_every`: a second start of the baseline runs beside
    and answers every so many groups. `most_starts`: where noise is large, starts are added up to so many. On a slow machine
    `recording_s` ends the recording of the baseline early, and the experiment is made to fit `experiment_s`: first groups
    shrink, then there are fewer of them, but never fewer than can decide anything. None = as long as it takes.
    """

    starts: int
    groups: int
    group_size: int
    output_tokens: int | None
    control_every: int | None = None
    most_starts: int | None = None
    recording_s: float | None = None
    experiment_s: float | None = None

    @property
    def blocks(self) -> int:
        control = 0 if self.control_every is None else 2 * math.ceil(self.groups / self.control_every)
        return self.starts * (4 * self.groups + control)

    def expected_s(self, request_s: float, concurrency: int) -> float:
        """How long the experiment takes if every request of either arm takes `request_s`."""
        return self.blocks * self.group_size * request_s / concurrency

    def fitted(self, request_s: float, concurrency: int) -> "Form":
        """The same form with groups small enough for its time limit."""
        if self.experiment_s is None:
            return self
        one = msgspec.structs.replace(self, group_size=1).expected_s(request_s, concurrency)
        smallest = min(self.group_size, concurrency)
        size = max(smallest, min(self.group_size, int(self.experiment_s / one))) if one > 0.0 else self.group_size
        smaller = msgspec.structs.replace(self, group_size=size)
        expected_s = smaller.expected_s(request_s, concurrency)
        if expected_s <= self.experiment_s:
            return smaller
        fewer = max(math.ceil(FEWEST_UNITS / self.starts), int(self.groups * self.experiment_s / expected_s))
        return msgspec.structs.replace(smaller, groups=min(self.groups, fewer))


MOST_LOADS = 12
QUICK = Form(starts=2, groups=6, group_size=2, output_tokens=64, recording_s=50.0, experiment_s=80.0)
FULL = Form(starts=6, groups=12, group_size=2, output_tokens=None, control_every=4, most_starts=10)

TIERS = "kv-tiers"  # what --tier is about
CODING = ("kv-compression", "kv-compression-lossy")  # what --codec is about


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. `techniques`: those to be tried, each by itself (none: whatever is predicted to gain most). `candidates`:
    how many are tried at most, the best predicted first; None: all that are named, or one. `loads`: several concurrencies to
    decide at, in ascending order, the first of which is `concurrency`; empty for a single one.

    `serve_flags` are passed to both arms of netgain, `starting` says how another engine is started, `hooks` how an arm is
    operated by commands. `budget_s`: device-seconds that the experiment may take. `resume`: `output` holds a run that ended
    before its end. `texts`, `tasks` and `scorer` are what quality is measured on, for lossy techniques and wherever there
    are tasks; `require_tasks`: nothing lossy is adopted without those (None: answers of a bundled workload do as well; False:
    texts alone do, with a caveat). `price`: what both arms cost is told as well. `draft`: a
    model or trained heads to be considered, see drafter.py. `tier` and `codec`: which kv-tiers and kv-compression are to try, and
    `tier_reset` a command that empties what of these runs apart, before each start. `kv_token_bytes`: what a token's KV takes,
    where an engine does not tell. `headers` go with every request to an arm, such as an API key; they are kept nowhere. Raises
    UsageError where a value cannot be meant.
    """

    output: Path
    model: str = "default"
    workload: str = "edit"
    concurrency: int = 1
    quick: bool = False
    techniques: tuple[str, ...] = ()
    candidates: int | None = None
    seed: int = 0
    slo: str | None = None
    temperature: float | None = None
    minimum_effect: float = MINIMUM_EFFECT
    output_tokens: int | None = None
    serve_flags: tuple[str, ...] = ()
    texts: str = BUNDLED
    tasks: str | None = None
    scorer: str | None = None
    require_tasks: bool | None = None
    loads: tuple[int, ...] = ()
    start_timeout_s: float = 300.0
    request_timeout_s: float = 120.0
    engine: Engine = "netgain"
    starting: Starting = Starting()
    hooks: Hooks | None = None
    budget_s: float | None = None
    resume: bool = False
    draft: str | None = None
    draft_survival: tuple[float, ...] | None = None
    draft_cost: float | None = None
    price: Price | None = None
    tier: TierAsked | None = None
    tier_reset: str | None = None
    codec: CodecAsked | None = None
    kv_token_bytes: int | None = None
    headers: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if self.engine != "netgain" and self.model == "default":
            raise UsageError(f"{self.engine} has no default model; name one that it can load (--model)")
        if self.engine != "netgain" and self.serve_flags:
            raise UsageError(f"--set is for netgain's settings; give {self.engine} its own flags (--flags)")
        if self.hooks is not None and self.starting != Starting(flags=self.starting.flags):
            raise UsageError(
                "arms operated by hooks are started by them: say environment and devices in the hooks' file, and leave out "
                "--python, --command, --env and --devices"
            )
        if self.hooks is not None and self.hooks.engine not in (None, self.engine):
            raise UsageError(
                f"the hooks say that {self.hooks.engine} serves, and the engine asked for is {self.engine}; name the same "
                "(--engine)"
            )
        if self.engine == "netgain" and self.starting != Starting(devices=self.starting.devices):
            raise UsageError(
                "netgain starts itself, with --set NAME=VALUE; --python, --command, --flags and --env are for others"
            )
        if self.draft is None and (self.draft_survival is not None or self.draft_cost is not None):
            raise UsageError("--draft-survival and --draft-cost are about a draft; name it with --draft")
        for name in self.techniques:
            if self.draft is None and name in ("draft", "heads"):
                raise UsageError(f"technique {name} needs to know who drafts: name a draft (--draft)")
            if self.techniques.count(name) > 1:
                raise UsageError(f"the technique {name} is named twice; name each once")
        if self.candidates is not None and self.candidates < 1:
            raise UsageError(f"{self.candidates} candidates decide nothing; try at least 1 (--candidates)")
        _check_beyond(self)
        if self.concurrency < 1:
            raise UsageError(f"the concurrency is {self.concurrency}; it must be at least 1")
        check_loads(self.loads, self.concurrency)
        if not 0 <= self.seed < 2**32:  # prompts derive seeds of their own from it, which servers read into 64 bits
            raise UsageError(f"the seed is {self.seed}; it must lie in [0, 2^32)")
        if self.temperature is not None and not 0.0 <= self.temperature <= 2.0:
            raise UsageError(f"the temperature is {self.temperature}; it must lie in [0, 2]")
        if not 0.0 < self.minimum_effect < 1.0:
            raise UsageError(f"the minimum effect is {self.minimum_effect}; give a share such as 0.03 for 3 %")
        if self.output_tokens is not None and self.output_tokens < 2:
            raise UsageError(f"outputs of {count(self.output_tokens, 'token')} show no decode; allow at least 2")

    @property
    def tier_tried(self) -> TierAsked:
        return self.tier or TierAsked()

    @property
    def apart(self) -> bool:
        """Whether KV goes to a store that runs apart from the arms, and that knows no salts."""
        return apart(self.tier, self.codec)

    @property
    def form(self) -> Form:
        """How much is measured; with several loads that of the lowest. A technique that was named and gains by reuse keeps all
        prompts of the quick form however slow the machine: of a few, none begins like an earlier one of its start."""
        base = QUICK if self.quick else FULL
        if any((named := CATALOGUE.get(name)) is not None and named.reuses for name in self.techniques):
            base = msgspec.structs.replace(base, recording_s=None, experiment_s=None)
        size = max(base.group_size, 2 * self.concurrency if self.concurrency > 1 else 1)
        tokens = base.output_tokens if self.output_tokens is None else self.output_tokens
        return msgspec.structs.replace(base, group_size=size, output_tokens=tokens)

    @property
    def most(self) -> int:
        """How many candidates are tried at most."""
        named = len(self.techniques) or None
        return min(self.candidates or named or 1, named or self.candidates or 1)

    def of(self, technique: str) -> "Settings":
        """Those of one candidate's experiment: what is about another technique is left out, and where several are tried its
        folder is its own."""
        tier = self.tier if technique == TIERS else None
        codec = self.codec if technique in CODING else None
        return msgspec.structs.replace(
            self,
            output=self.output if self.most == 1 else self.output / technique,
            tier=tier,
            codec=codec,
            tier_reset=self.tier_reset if apart(tier, codec) else None,
        )

    @property
    def devices_written(self) -> int | None:
        """How many each arm was written to occupy; None where nothing tells."""
        if self.hooks is not None and self.hooks.devices is not None:
            return self.hooks.devices
        return devices_written(self.engine, self.starting)

    @property
    def devices(self) -> int:
        """The same; one is assumed where nothing tells."""
        return self.devices_written or 1


def apart(tier: TierAsked | None, codec: CodecAsked | None) -> bool:
    """Whether KV of these goes to a store that runs apart from the arms."""
    return (tier is not None and tier.kind == "lmcache") or (codec is not None and codec.url is not None)


def _check_beyond(settings: Settings) -> None:
    """What is to be tried beyond the device: whether the engine has it, and whether every start can begin with it empty."""
    tier, codec = settings.tier, settings.codec
    if tier is not None and TIERS not in settings.techniques:
        raise UsageError("--tier says which tier is tried; name the technique as well (--technique kv-tiers)")
    if codec is not None and not set(CODING) & set(settings.techniques):
        raise UsageError(
            "--codec says which codec is tried; name the technique as well (--technique kv-compression, or kv-compression-lossy)"
        )
    if settings.kv_token_bytes is not None and settings.engine == "netgain":
        raise UsageError("netgain tells what a token's KV takes; --kv-token-bytes is for other engines")
    if tier is not None:
        tiering_switch(settings.engine, {"tier": tier.kind, "gib": tier.gib or 1, "folder": tier.folder})
    if codec is not None:
        compression_switch(settings.engine, {"codec": codec.name, **({} if codec.url is None else {"url": codec.url})})
    if codec is not None and codec.url is not None and any(codec.url in flag for flag in settings.starting.flags):
        raise UsageError(
            f"the flags of both arms name the store {codec.url} as well, where each would find what the other left; give the "
            "candidate one of its own"
        )
    if settings.tier_reset is not None and (not settings.apart or settings.hooks is not None):
        raise UsageError(
            "--tier-reset empties a store that runs apart from servers that netgain starts (--tier lmcache, or a --codec "
            "with url); "
            "memory and folders are empty at every start without it, and hooks empty their own in start"
        )
    if settings.apart and settings.tier_reset is None and settings.hooks is None:
        raise UsageError(
            "what runs apart outlives every start of the server, and each is to begin cold: give the command that empties it "
            "(--tier-reset), or operate the arms by hooks whose start does"
        )
    if tier is not None and tier.kind == "disk" and settings.hooks is not None:
        raise UsageError(
            "a folder of arms that hooks start cannot be emptied from here, and each start is to begin cold; take --tier "
            "dram, or "
            "compare two descriptions whose start hooks empty it (netgain compare)"
        )


def check_loads(loads: tuple[int, ...], concurrency: int) -> None:
    """Raises UsageError for such as no sweep over them can be meant. `concurrency`: what stands for all of them."""
    if loads and (loads[0] != concurrency or any(after <= before for before, after in itertools.pairwise(loads))):
        raise UsageError(f"the loads are {', '.join(map(str, loads))}; give each once, in ascending order")


def parse_loads(text: str) -> tuple[int, ...]:
    """Concurrencies as people write them: `8`, or `1,2,4,8` for a sweep. Ascending, each once. Raises UsageError."""
    found: set[int] = set()
    for part in text.split(","):
        try:
            found.add(int(part))
        except ValueError:
            raise UsageError(
                f"the concurrency {text!r} is no whole number; give one such as 4, or several such as 1,2,4,8"
            ) from None
    if min(found) < 1:
        raise UsageError(f"the concurrency is {min(found)}; it must be at least 1")
    if len(found) > MOST_LOADS:
        raise UsageError(f"{len(found)} loads are too many for one experiment; give at most {MOST_LOADS}")
    return tuple(sorted(found))
