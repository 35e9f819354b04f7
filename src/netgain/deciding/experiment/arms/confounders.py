"""What differs between two arms besides the technique under test, and what is known to change with it behind one's back.

Sources: vLLM's config/vllm.py (which runner), SGLang's arg_groups/speculative_hook.py (limits under speculation), and the
configurations that the two servers tell of themselves.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from netgain.measuring.observe.names import Engine

MOST_FIELDS_SAID = 12
UNTOLD = "{engine} did not tell its effective configuration, so differences between the arms could not be looked for."
_RUNNER_FALLBACK = re.compile(r"Model Runner V2 .*?using the V1 model\s+runner")
_NOT_ASYNC = re.compile(r"Async scheduling .*?will be disabled")
_V1_ONLY = ("ngram", "draft_model", "medusa", "suffix")
# Names that differ between any two servers, or that say what the server did since, not how it is set up.
_VOLATILE = re.compile(
    r"(^|[._])(pid|port|ports|host|hostname|url|instance_id|id|uuid|created|started|start_time|time|timestamp|uptime|"
    r"dir|folder|path|log|socket|addr|address|ip|seed_of_process|internal_states|avg_request_queue_latency|"
    r"last_gen_throughput|memory_usage|nccl_port|random_seed|traces_dir|slot_save_path|is_sleeping|step_probe|step_cost|measured_at|\w*marker|"
    r"VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME)($|[._])"
)
_SPECULATION = re.compile(r"spec(ulat|_|\b|-)|draft|ngram|lookup", re.IGNORECASE)
_BEYOND_THE_DEVICE = re.compile(
    r"kv[_.](tiers|codecs?|policy|transfer|offload|connector)|^engine\.kv\.|hicache|hierarchical_cache|lmcache",
    re.IGNORECASE,
)
_OWN = {  # technique -> the fields by which it shows in a configuration
    "kv-tiers": _BEYOND_THE_DEVICE,
    "kv-compression": _BEYOND_THE_DEVICE,
    "kv-compression-lossy": _BEYOND_THE_DEVICE,
    "kv-blending": re.compile(r"blend|chunks|settings_note", re.IGNORECASE),  # the note says how chunks are joined
    "kv-int8": re.compile(r"kv_(cache_)?dtype|kv_token", re.IGNORECASE),
}


class ArmSetup(msgspec.Struct, frozen=True, kw_only=True):
    """One arm as it runs. `configuration` None: the engine did not tell."""

    name: str
    flags: tuple[str, ...]
    configuration: Mapping[str, str] | None
    log: str = ""
    environment: Mapping[str, str] = {}


def confounders(
    engine: Engine, baseline: ArmSetup, candidate: ArmSetup, technique: str | None = None
) -> tuple[str, ...]:
    """What a reader must know before believing that only the technique differs, most important first. Fields that are the
    technique's own, and speculation's, are no confounders."""
    found = [*known_confounders(engine, baseline, candidate)]
    if baseline.configuration is None or candidate.configuration is None:
        return (*found, UNTOLD.format(engine=engine))
    own = _OWN.get(technique or "")
    differ = [
        one
        for one in differences(baseline.configuration, candidate.configuration)
        if own is None or not own.search(one[0])
    ]
    if differ:
        found.append(f"Settings other than the technique's differ between the arms: {listed(differ)}.")
    return tuple(found)


def differs_anyway(name: str) -> bool:
    """Whether a setting of this name differs between any two processes, set up alike."""
    return _VOLATILE.search(name) is not None


def listed(differ: Sequence[tuple[str, str, str]]) -> str:
    """The first differences in words, and how many more there are."""
    shown = [f"{name} ({was} in the baseline, {now} in the candidate)" for name, was, now in differ[:MOST_FIELDS_SAID]]
    more = f", and {len(differ) - MOST_FIELDS_SAID} more" if len(differ) > MOST_FIELDS_SAID else ""
    return f"{'; '.join(shown)}{more}"


def differences(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(field, baseline, candidate) of what is set differently, without speculation's own fields and without what differs
    between any two processes."""
    names = sorted({*baseline, *candidate})
    return [
        (name, _short(baseline.get(name)), _short(candidate.get(name)))
        for name in names
        if baseline.get(name) != candidate.get(name) and not differs_anyway(name) and not _SPECULATION.search(name)
    ]


def known_confounders(engine: Engine, baseline: ArmSetup, candidate: ArmSetup) -> list[str]:
    """What an engine is known to change with speculation, by what its flags and logs show."""
    found: list[str] = []
    if engine == "vllm":
        fell = {arm.name: bool(_RUNNER_FALLBACK.search(arm.log)) for arm in (baseline, candidate)}
        pinned = all("VLLM_USE_V2_MODEL_RUNNER" in arm.environment for arm in (baseline, candidate))
        if fell[baseline.name] != fell[candidate.name]:
            only = next(name for name, did in fell.items() if did)
            found.append(
                f"vLLM fell back to its V1 model runner in the {only} only, so runners are compared as well as the technique: "
                "set VLLM_USE_V2_MODEL_RUNNER=0 for both arms."
            )
        elif (
            not pinned
            and not any(fell.values())
            and len(v1_only := _methods(baseline, candidate) & {*_V1_ONLY, None}) > 1
        ):
            (method,) = v1_only - {None}
            found.append(
                f"vLLM runs {method} on its V1 model runner only and may choose V2 without it; neither "
                "log says which ran. Set VLLM_USE_V2_MODEL_RUNNER=0 for both arms to be sure."
            )
        turned_off = [arm.name for arm in (baseline, candidate) if _NOT_ASYNC.search(arm.log)]
        if len(turned_off) == 1:
            found.append(
                f"vLLM turned asynchronous scheduling off in the {turned_off[0]} only, so what that costs is in the result, as "
                "it is after deploying it on this version. --no-async-scheduling in both arms shows the drafts alone."
            )
        if any("--disable-log-stats" in arm.flags for arm in (baseline, candidate)):
            found.append("vLLM's statistics are off (--disable-log-stats), so its counters could not be read.")
    if engine == "sglang":
        speculates, limited = (
            [any(flag.startswith(option) for flag in arm.flags) for arm in (baseline, candidate)]
            for option in ("--speculative-algorithm", "--max-running-requests")
        )
        if speculates[0] != speculates[1] and not all(limited):
            found.append(
                "SGLang sets its limit of running requests to 48 and turns mixed chunking off under speculation unless told "
                "otherwise: set --max-running-requests in both arms, or a difference at high load is the limit's."
            )
    return found


def _methods(*arms: ArmSetup) -> set[str | None]:
    return {_vllm_method(arm.flags) for arm in arms}


def _vllm_method(flags: Sequence[str]) -> str | None:
    text = " ".join(flags)
    found = re.search(r'"method":\s*"(\w+)"', text) or re.search(r"--spec-method[= ](\w+)", text)
    return found[1] if found else None


def _short(value: str | None) -> str:
    text = "absent" if value is None else value
    return text if len(text) <= 60 else text[:57] + "..."
