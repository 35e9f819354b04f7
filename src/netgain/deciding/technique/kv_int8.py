"""KV cache in 8 bits: predicted from what a step was measured to cost more with its context. Lossy, so gated by quality."""

from collections.abc import Sequence

import numpy as np

from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord

SETTING: Setting = {"kv_dtype": "int8"}
VALUE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}
PAYS = 1.005  # a predicted speedup below this is less than the step costs can tell from none
_KNOWN = {"netgain": ("0.1.0",), "vllm": ("0.32.0",)}
FURTHER = 2  # times the shortest measured context must the longest be, to tell what reading KV costs
_NOT_FOUND = {
    "vllm": ": neither vllm:cache_config_info on its /metrics nor its configuration (VLLM_SERVER_DEV_MODE=1, or its log) does"
}
_ONE_CONTEXT = (
    ": a second one is measured when the technique is named (--technique kv-int8), by a server that takes prompts of about 1,500 "
    "tokens (--max-model-len)"
)


class KvInt8:
    """Keys and values rounded to 8 bits with a scale per head and token: about half of bf16's bytes."""

    name = "kv-int8"
    title = "KV cache in int8"
    relieves = "memory for KV (room for more or longer requests), and reading it in decode steps"
    brings = "answers that may differ, rounding of every new key and value, scales that are read with them"
    kind: Kind = "lossy"
    reuses = False
    must_report = (
        "perplexity ratio",
        "KL divergence (a lower bound)",
        "task score, where a task set is given",
        "decode time",
        "preempted time",
        "KV tokens that fit, of both arms",
    )

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return None  # speed depends on lengths alone, and quality is measured on texts of its own

    def cannot_apply(self, facts: Facts) -> str | None:
        if facts.kv_dtype is not None and facts.kv_dtype not in VALUE_BYTES:
            return f"the KV cache is kept in {facts.kv_dtype} already"
        if facts.engine not in _KNOWN:
            return f"an 8-bit KV cache has no switch for {facts.engine} here; known: {', '.join(_KNOWN)}"
        if facts.kv_dtype is None:
            return f"the server does not tell in which type it keeps KV{_NOT_FOUND.get(facts.engine, '')}"
        if facts.step_cost is None:
            return f"what a step costs is not known ({facts.step_cost_missing or 'not measured'})"
        contexts = {point.context for point in facts.step_cost.points}
        if max(contexts) < FURTHER * max(1, min(contexts)):
            asked = "" if facts.engine == "netgain" else _ONE_CONTEXT
            return f"steps were measured at one context only, so what reading KV costs is not known{asked}"
        return None

    def predict(self, facts: Facts) -> Prediction:
        """At most: all that a step costs more with context is taken for reading KV, which shrinks to 1 byte per value."""
        cost, before = facts.step_cost, VALUE_BYTES.get(facts.kv_dtype or "")
        if cost is None or before is None:
            raise UsageError("an int8 KV cache cannot be predicted without a measured step cost and the type of KV")
        kept = 1.0 - 1.0 / before
        saved = [kept * reading_share(cost, facts.concurrency, _context(one)) * _decode_s(one) for one in facts.records]
        whole = [one.e2e_s for one in facts.records]
        ratios = [total / max(1e-9, total - gain) for total, gain in zip(whole, saved, strict=True)]
        net_s = float(np.mean(saved)) if saved else 0.0
        speedup = float(np.median(ratios)) if ratios else 1.0
        return Prediction(
            technique=self.name,
            setting=SETTING,
            off_is_better=speedup < PAYS,
            speedup_e2e=speedup,
            low=None,
            high=None,
            speedup_tpot=_token_speedup(facts.records, saved),
            speedup_mean=sum(whole) / max(1e-9, sum(whole) - sum(saved)) if whole else 1.0,
            saved_s={Stage.DECODE: net_s},
            spent_s={},
            net_s=net_s,
            committed_per_step=None,
            drafts=None,
            considered=(Considered(setting=SETTING, net_s=net_s, speedup_e2e=speedup, committed_per_step=None),),
            basis=(
                f"an upper limit: {kept:.0%} of what a decode step was measured to cost more at the recorded contexts than at "
                "none"
            ),
            not_covered=_not_covered(facts),
        )

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        match engine:
            case "netgain":
                flags: tuple[str, ...] = ("--set", f"engine.model.kv_dtype={setting['kv_dtype']}")
            case "vllm":  # its 8 bits are fp8 (e4m3)
                flags = ("--kv-cache-dtype", "fp8")
            case _:
                raise UsageError(
                    f"an 8-bit KV cache has no switch for the engine {engine!r} here; known: netgain, vllm"
                )
        return SwitchOn(engine=engine, flags=flags, checked_with=_KNOWN[engine])


def reading_share(cost: StepCost, batch: int, context: int) -> float:
    """Share of a plain decode step that its context costs, 0 to 1: from the line through the shortest and the longest
    measured context."""
    contexts = sorted({point.context for point in cost.points})
    low, high = (cost.verify(batch, 1, at).seconds for at in (contexts[0], contexts[-1]))
    slope = max(0.0, (high - low) / (contexts[-1] - contexts[0]))
    step_s = cost.verify(batch, 1, context).seconds
    return min(1.0, slope * context / step_s) if step_s > 0.0 else 0.0


def _context(record: ClientRecord) -> int:
    """Tokens behind the mean decode step."""
    server = record.server
    return 0 if server is None else server.prompt_tokens + server.output_tokens // 2


def _decode_s(record: ClientRecord) -> float:
    server = record.server
    if server is None:
        return 0.0
    return max(0.0, server.stages.get(Stage.DECODE, 0.0) - (server.ttft_stages or {}).get(Stage.DECODE, 0.0))


def _token_speedup(records: Sequence[ClientRecord], saved: Sequence[float]) -> float | None:
    ratios = [
        spent / max(1e-9, spent - gain)
        for record, gain in zip(records, saved, strict=True)
        if (spent := _decode_s(record)) > 0.0
    ]
    return float(np.median(ratios)) if ratios else None


def _not_covered(facts: Facts) -> tuple[str, ...]:
    said = [
        "rounding new keys and values and reading their scales, which take from it",
        "attention that waits for arithmetic instead of memory gains nothing from fewer bytes",
        "prefill is taken as unchanged",
    ]
    preempted = facts.decomposition.share(Stage.PREEMPTED)
    if preempted > 0.0:
        said.append(
            f"{preempted:.1%} of the time requests were preempted for want of KV memory; about twice the room may end that, "
            "which is not in the figure"
        )
    else:
        said.append("no request was preempted for want of KV memory, so more room shows in no latency at this load")
    return tuple(said)
