"""What deciding has to know of each engine: how its arms are started and asked, and where what it does not tell comes from."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec

from netgain.cost.step_cost import StepCost
from netgain.deciding.decide.outside import BASIS, step_cost_outside, with_ids
from netgain.deciding.decide.prefill_outside import FEWEST_LENGTHS, NO_PREFILL, PREFILL_BASIS, prefill_outside
from netgain.deciding.decide.server import measure_step_cost
from netgain.deciding.decide.settings import TIERS, Settings
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.from_metrics import decompose_by_metrics
from netgain.deciding.experiment.arm import Arm
from netgain.deciding.experiment.arms.beyond import Beyond
from netgain.deciding.experiment.arms.cold import verify_cold
from netgain.deciding.experiment.arms.confounders import confounders
from netgain.deciding.experiment.arms.described import Described, launched, setup_of
from netgain.deciding.experiment.arms.idle import SPINNING, find_spinners
from netgain.deciding.experiment.arms.launched import LaunchedServer
from netgain.deciding.experiment.arms.settings_told import ArmSettings, told_by
from netgain.deciding.experiment.conduct import Asking
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.technique.decomposition import Decomposition
from netgain.deciding.technique.prompt_cost import PromptCost
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.verdict.document import Caveat
from netgain.measuring.client.options import Options
from netgain.measuring.client.record import ClientRecord
from netgain.measuring.observe.names import Engine
from netgain.measuring.observe.reading import HOW_TO_READ
from netgain.measuring.observe.scrape import Observed, snapshot
from netgain.measuring.workload.item import Item

PROBE_CONTEXT = 128  # tokens before the steps whose cost is measured from outside
LONG_CONTEXT = 1024  # and of those that show what reading KV costs, where the technique that was named needs to know
LONG_WIDTHS = (1, 2)
_VERSIONS: Mapping[Engine, tuple[str, str]] = {
    "vllm": ("/version", "version"),
    "sglang": ("/get_server_info", "version"),
    "llama.cpp": ("/props", "build_info"),
}


def described(settings: Settings) -> Described:
    """How both arms are started, but for the technique's own flags."""
    starting, hooks = settings.starting, settings.hooks
    if settings.engine == "netgain":
        starting = msgspec.structs.replace(starting, flags=settings.serve_flags)
    if hooks is not None:  # whatever they start is reset and read as the engine that was asked for
        hooks = msgspec.structs.replace(hooks, engine=settings.engine)
    return Described(engine=settings.engine, model=settings.model, starting=starting, hooks=hooks)


def launch(settings: Settings, name: str, flags: Sequence[str]) -> Arm:
    """The arm, not yet started. A candidate with a tier that would outlive it begins each start with that empty."""
    beyond = beyond_of(settings) if name == CANDIDATE else None
    told = flags if beyond is None else beyond.told(flags)
    arm = launched(described(settings), name, settings.output, told, settings.headers)
    if isinstance(arm, LaunchedServer):
        arm.beyond = beyond
    return arm


def beyond_of(settings: Settings) -> Beyond | None:
    """What the candidate keeps beyond its server; its folder is named after that of the output, which no two runs share."""
    tier = settings.tier
    if tier is not None and tier.kind == "disk":
        digest = hashlib.sha256(str(settings.output.absolute()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return Beyond(arm=CANDIDATE, folder=Path(tier.folder) / f"netgain-decide-{digest}", asked=tier.folder)
    return None if settings.tier_reset is None else Beyond(arm=CANDIDATE, reset=settings.tier_reset)


def baseline_flags(engine: Engine) -> tuple[str, ...]:
    """What switches every technique of the catalogue off, where that is not the default."""
    return ("--speculation", "none") if engine == "netgain" else ()


def asking(settings: Settings, model: str) -> Asking:
    """How the engine's arms are asked; llama.cpp ignores salts, and so does LMCache (its pull request 2880, SGLang issue
    37160)."""
    own = settings.engine == "netgain"
    options = Options(
        timeout_s=settings.request_timeout_s, server_record=own, server_tokens=own, headers=settings.headers
    )
    return Asking(model=model, options=options, salted=settings.engine != "llama.cpp" and not settings.apart)


async def step_cost(settings: Settings, url: str, asked: Asking) -> tuple[StepCost | None, str | None, str]:
    """The cost of steps or why it is not known, and how it was measured."""
    if settings.engine == "netgain":
        cost, missing = await measure_step_cost(url, settings.headers, max(settings.concurrency, *settings.loads, 1))
        return cost, missing, "measured by the engine"
    found: list[StepCost] = []
    unknown: str | None = None
    if settings.techniques == (TIERS,):  # nothing that decodes is asked about
        prompts = await _prompt_cost(settings.engine, url, asked)
        return prompts.cost, prompts.missing, prompts.basis
    for load in settings.loads or (settings.concurrency,):
        cost, why = await step_cost_outside(url, settings.engine, asked, load, PROBE_CONTEXT)
        found += [] if cost is None else [cost]
        unknown = unknown or why
        if "kv-int8" in settings.techniques and settings.engine == "vllm":
            cost, _ = await step_cost_outside(url, settings.engine, asked, load, LONG_CONTEXT, widths=LONG_WIDTHS)
            found += [] if cost is None else [cost]
    measured = {(point.batch, point.tokens, point.context): point for cost in found for point in cost.points}
    return StepCost(points=tuple(measured.values()), subject=found[0].subject) if found else None, unknown, BASIS


async def prompt_cost(settings: Settings, url: str, asked: Asking) -> PromptCost | None:
    """What computing prompts costs, where that is asked about and is not in the cost of steps."""
    apart = settings.engine != "netgain" and TIERS in settings.techniques and len(settings.techniques) > 1
    return await _prompt_cost(settings.engine, url, asked) if apart else None


async def _prompt_cost(engine: Engine, url: str, asked: Asking) -> PromptCost:
    points = await prefill_outside(url, asked)
    if len(points) < FEWEST_LENGTHS:
        return PromptCost(cost=None, missing=NO_PREFILL, basis=PREFILL_BASIS)
    cost = StepCost(points=points, subject={"engine": engine, "how": PREFILL_BASIS})
    return PromptCost(cost=cost, missing=None, basis=PREFILL_BASIS)


def decomposed(engine: Engine, records: Sequence[ClientRecord], seen: Observed) -> Decomposition:
    """By the accounts that came with the answers, else by the engine's metrics of the same window."""
    return decompose(records) if engine == "netgain" else decompose_by_metrics(records, seen)


async def replayable(
    engine: Engine, arm: Arm, model: str, records: Sequence[ClientRecord], items: Sequence[Item]
) -> tuple[ClientRecord, ...]:
    """Records that the catalogue can replay, where the engine's tokenizer can be asked."""
    if engine == "netgain":
        return tuple(records)
    return await with_ids(arm, engine, model, records, {item.id: item for item in items})


async def engine_version(engine: Engine, url: str, headers: Mapping[str, str]) -> str | None:
    """What the running engine calls its version; None where it does not tell."""
    if engine not in _VERSIONS:
        seen = await snapshot(f"{url}/metrics", headers)
        families = () if seen is None else seen.families.values()
        samples = (sample for family in families for sample in family.samples)
        return next((dict(one.labels).get("version") for one in samples if one.name == "netgain_build_info"), None)
    route, field = _VERSIONS[engine]
    try:
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10.0), headers=headers)
        async with session, session.get(f"{url}{route}") as response:
            told = msgspec.json.decode(await response.read())
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, RecursionError):
        return None
    version = told.get(field) if isinstance(told, dict) else None
    return version if isinstance(version, str) else None


async def settings_of(engine: Engine, arms: Mapping[str, Arm]) -> tuple[ArmSettings, ...]:
    """Every setting that running arms tell of themselves."""
    logs = {name: arm.log if isinstance(arm, LaunchedServer) else "" for name, arm in arms.items()}
    return tuple([await told_by(name, arm.url, engine, logs[name], arm.headers) for name, arm in arms.items()])


async def caveats_before(
    settings: Settings, arms: Mapping[str, Arm], asked: Asking, switch: SwitchOn, technique: str
) -> tuple[Caveat, ...]:
    """Of running, idle arms: what differs besides the technique, whether their caches can be made cold, and what is known of its
    switch."""
    engine, flags = settings.engine, {BASELINE: baseline_flags(settings.engine), CANDIDATE: switch.flags}
    spinning = await find_spinners(arms.values())
    setups = {
        name: await setup_of(arms[name], described(settings), flags.get(name, ())) for name in (BASELINE, CANDIDATE)
    }
    found = [
        Caveat(says=said, engine=engine, source="configuration of the running servers, and their logs")
        for said in confounders(engine, setups[BASELINE], setups[CANDIDATE], technique)
    ]
    source = "the documentation and source of the engine"
    found += [Caveat(says=f"{said[0].upper()}{said[1:]}.", engine=engine, source=source) for said in switch.warns]
    if spinning:
        says = SPINNING.format(names=" and ".join(spinning))
        found.append(Caveat(says=says, engine=engine, source="CPU time of the idle servers"))
    for name, arm in arms.items():
        cold = await verify_cold(arm, asked)
        if cold.caveat is not None:
            found.append(Caveat(says=f"{name}: {cold.caveat}", engine=engine, source="counters around a probe"))
    if engine in HOW_TO_READ:
        found.append(Caveat(says=HOW_TO_READ[engine], engine=engine, source="the engine's source"))
    return tuple(found)
