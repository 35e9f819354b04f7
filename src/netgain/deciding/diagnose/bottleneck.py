"""Where a request waits longest, with the evidence for it and the conclusions that this evidence does not allow.

A symptom never names its cause: "first token late" and "gaps between tokens" are first separated into stages. Device
utilisation is not used at all, since a busy device may be waiting for memory, and a mean hides one full replica.
"""

import msgspec

from netgain.deciding.technique.decomposition import Decomposition
from netgain.deciding.technique.facts import Facts
from netgain.ledger.stage import ClientStage, Stage
from netgain.wording import count

DOMINANT = 0.5  # share of end-to-end time from which one group of stages is called the bottleneck
FLAT = (
    1.25  # a step of two tokens that costs at most this much more than one of a single token waits for something shared
)
STEEP = 1.75

GROUPS: dict[str, tuple[Stage, ...]] = {
    "decode steps": (Stage.DECODE, Stage.VERIFY, Stage.DRAFT),
    "prefill": (Stage.PREFILL,),
    "waiting for a turn": (Stage.QUEUED, Stage.PREEMPTED),
    "moving KV": (Stage.CACHE_LOOKUP, Stage.KV_LOAD, Stage.KV_TRANSFER),
    "text and transport": (Stage.TOKENISE, Stage.RESPOND, Stage.CLIENT_BLOCKED),
}


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True):
    """`place` is a key of GROUPS, or None when no group dominates. `share` is its part of end-to-end time."""

    place: str | None
    share: float
    statement: str
    evidence: tuple[str, ...]
    cannot_conclude: tuple[str, ...]


def find_bottleneck(facts: Facts) -> Bottleneck:
    """Name the group of stages that dominates, say why, and say what does not follow."""
    parts = facts.decomposition
    shares = {
        name: parts.share(*stages) for name, stages in GROUPS.items() if not set(stages) <= set(parts.not_measured)
    }
    unknown = [name for name in GROUPS if name not in shares]
    if not shares:
        return _unknown(facts)
    place = max(shares, key=lambda name: shares[name])
    share = shares[place]
    dominant = share >= DOMINANT
    statement = (
        f"{place.capitalize()} take {share:.0%} of end-to-end time"
        if place == "decode steps"
        else f"{place.capitalize()} takes {share:.0%} of end-to-end time"
    )
    if not dominant:
        statement += "; no single place takes half, so no bottleneck is named"
    return Bottleneck(
        place=place if dominant else None,
        share=share,
        statement=statement + ".",
        evidence=(_shares(shares, unknown), *_first_token(parts), *_gaps(facts), *_interference(parts)),
        cannot_conclude=tuple(_refused(facts)),
    )


def _unknown(facts: Facts) -> Bottleneck:
    return Bottleneck(
        place=None,
        share=0.0,
        statement=f"{facts.engine} does not tell where a request waits, so no bottleneck is named.",
        evidence=(_shares({}, list(GROUPS)), *_first_token(facts.decomposition), *_gaps(facts)),
        cannot_conclude=tuple(_refused(facts)),
    )


def _shares(shares: dict[str, float], unknown: list[str]) -> str:
    told = [f"{name} {share:.1%}" for name, share in shares.items()]
    told += [f"{name} not measured by this engine" for name in unknown]
    return "Shares of end-to-end time: " + ", ".join(told) + "."


def _first_token(parts: Decomposition) -> list[str]:
    stages = parts.ttft_stages
    told = ", ".join(f"{_stage_name(stage)} {ms(seconds)}" for stage, seconds in stages.items() if seconds >= 1e-5)
    cached = "an unknown number" if parts.cached_tokens is None else f"{parts.cached_tokens:.0f}"
    return [
        f"First token after {ms(parts.ttft_s)} in the server: {told}; {cached} of "
        f"{parts.prompt_tokens:.0f} prompt tokens came from a cache (the device's or a KV tier). "
        "Loading the model is outside (warmed up)."
    ]


def _stage_name(stage: Stage) -> str:
    return "not told apart" if stage is Stage.UNATTRIBUTED else str(stage)


def _gaps(facts: Facts) -> list[str]:
    parts = facts.decomposition
    later = parts.output_tokens - 1.0
    if later <= 0.0:
        return []
    steps = sum(parts.decode_stages.get(stage, 0.0) for stage in GROUPS["decode steps"])
    queued = sum(parts.decode_stages.get(stage, 0.0) for stage in GROUPS["waiting for a turn"])
    network = parts.client_s.get(ClientStage.NETWORK, 0.0)
    within = "which the engine does not split"
    if Stage.DECODE not in parts.not_measured:
        within = f"of which {ms(steps / later)} in steps"
        waits = set(GROUPS["waiting for a turn"]) <= set(parts.not_measured)
        within += (
            " (waiting between them is not measured apart)"
            if waits
            else f" and {ms(queued / later)} waiting between them"
        )
    around = f"network and client add {ms(network)} per request"
    if parts.network_within:
        around = "the network is within, since the engine has no time of its own for whole requests"
    said = [f"Per token after the first: {ms(parts.decode_s / later)}, {within}; {around}."]
    ratio = _two_over_one(facts)
    if ratio is not None:
        shape = (
            "so most of a step is paid once however many tokens it holds (as when weights are read)"
            if ratio <= FLAT
            else "so a step costs nearly in proportion to its tokens (as when arithmetic is the limit)"
            if ratio >= STEEP
            else "which is neither flat nor proportional"
        )
        said.append(f"A step of two tokens per sequence costs {ratio:.2f} times one of a single token, {shape}.")
    return said


def _two_over_one(facts: Facts) -> float | None:
    if facts.step_cost is None:
        return None
    parts = facts.decomposition
    context = round(parts.prompt_tokens + parts.output_tokens / 2)
    two, one = (facts.step_cost.verify(facts.concurrency, tokens, context) for tokens in (2, 1))
    return two.seconds / one.seconds if "tokens" not in two.outside and "batch" not in two.outside else None


def _interference(parts: Decomposition) -> list[str]:
    if parts.own_s is None or parts.stall_s is None:
        return []
    return [
        f"Of its step time a request pays {ms(parts.own_s)} for itself and {ms(parts.stall_s)} for what was batched with it."
    ]


def _refused(facts: Facts) -> list[str]:
    """The conclusions that this measurement does not support, whatever the shares say."""
    parts = facts.decomposition
    said = [
        *(
            [f"Anything about {', '.join(map(str, parts.not_measured))}: not measured by this engine."]
            if parts.not_measured
            else []
        ),
        "That a device is 'busy' or 'idle' is no evidence here: utilisation was not used and would not tell compute from "
        "waiting for memory.",
        "'The first token is late, so prefill compute is the problem': the stages above separate queue, look-up and prefill, "
        "but not arithmetic from memory inside prefill.",
        "'Gaps are long, so speculate': that depends on what drafts are accepted and what a wider step costs, which is "
        "predicted and measured below.",
    ]
    if _two_over_one(facts) is None:
        said.append("Whether decode waits for memory or for arithmetic: no step-cost curve reaches this batch.")
    else:
        said.append("Which memory or unit a step waits for: the cost curve shows its shape, not a hardware counter.")
    if facts.concurrency == 1:
        said.append("Anything about throughput or about other concurrencies: one request was in flight.")
    if parts.cached_tokens is not None and parts.cached_tokens <= 0.0:
        said.append("What a warm prefix cache would change: prompts were measured cold.")
    if parts.dropped:
        said.append(
            f"Anything about the {count(parts.dropped, 'request')} that failed or came without a server record."
        )
    return said


def ms(seconds: float) -> str:
    """Milliseconds with a sensible number of digits."""
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms" if value >= 1 else f"{value:.2f} ms"
