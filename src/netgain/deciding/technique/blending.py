"""Chunks of prompts computed once, apart, and joined: predicted from the recorded prompts; what joining computes anew of them is
priced by the step-cost curve. Lossy, so gated by quality: the ratio comes from a calibration of the model, or from the user,
never from a constant."""

import msgspec
import numpy as np

from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.chunks_told import ChunksSeen
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.technique.replayed import bounds
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

PAYS = 1.005  # a predicted speedup below this is less than can be told from none
PIECE = 512  # tokens of a prompt with chunks that one step computes
_ELSEWHERE = {
    "vllm": "LMCache's in-process mode, which had blending, is deprecated, and its multiprocess mode supports none in current "
    "versions",
    "sglang": "HiCache finds prefixes only",
    "llama.cpp": "it reuses prefixes, and shifts a text's own cache, only",
}


class Blending:
    """KV of documents is reused wherever they stand in a prompt, most of it without seeing what stands before."""

    name = "kv-blending"
    title = "KV of chunks, joined"
    relieves = (
        "prefill of prompts made of the same documents in ever another order or company, which no prefix cache finds"
    )
    brings = (
        "answers that may differ, computing each chunk once by itself, memory for chunks, and steps of up to 512 tokens of a "
        "prompt, also where the engine's budget for a step is smaller"
    )
    kind: Kind = "lossy"
    reuses = True
    must_report = (
        "the ratio and where it comes from",
        "KL divergence of the answers' laws by ratio",
        "task score over several chunks, or that the model is too weak to judge",
        "tokens computed anew and tokens computed apart first",
        "first-token time, chunks there and not there apart",
    )

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        if synthetic_text:
            return "made-up text has no chunks that are used again, and answers about nothing cannot get worse"
        return None

    def cannot_apply(self, facts: Facts) -> str | None:
        if facts.engine != "netgain":
            return (
                f"it has no switch for {facts.engine}: {_ELSEWHERE.get(facts.engine, 'no way to do it is known there')}"
            )
        if not any(record.item_id in facts.chunks for record in facts.records):
            return (
                "no prompt of this workload says which of its pieces are chunks, so there is nothing to join; the bundled "
                "workload documents does, and docs/workloads.md says how yours can"
            )
        told = facts.blending
        if told.ratio is None:
            return (
                "what joining chunks costs in quality on this model was not measured: run `netgain cache blend MODEL`, or name a "
                "ratio to try (--set engine.blending.ratio=0.3), which the quality check of the experiment then judges"
            )
        if told.ratio >= 1.0:
            found = "" if told.says is None else f" ({told.says})"
            return (
                f"at the ratio that is {told.source} everything is computed anew, which saves nothing{found}; another can be "
                "tried all the same (--set engine.blending.ratio=0.3), and is held to the quality check of the experiment"
            )
        if facts.step_cost is None:
            return f"what a step costs is not known: {facts.step_cost_missing}"
        return None

    def predict(self, facts: Facts) -> Prediction:
        """The ratio that the server has; nobody chooses it by speed."""
        reason = self.cannot_apply(facts)
        told, cost = facts.blending, facts.step_cost
        if reason is not None or told.ratio is None or told.recomputed is None or cost is None:
            raise UsageError(f"kv-blending cannot be predicted here: {reason}")
        outcomes = _outcomes(facts, cost, told.recomputed)
        ratios = np.array([one.e2e_s / max(1e-9, one.e2e_s - one.net_s) for one in outcomes])
        low, high = bounds(ratios)
        net_s, speedup = float(np.mean([one.net_s for one in outcomes])), float(np.median(ratios))
        whole = sum(one.e2e_s for one in outcomes)
        setting: Setting = {"ratio": told.ratio}
        return Prediction(
            technique=self.name,
            setting=setting,
            off_is_better=net_s <= 0.0 or speedup < PAYS,
            speedup_e2e=speedup,
            low=low,
            high=high,
            speedup_tpot=None,
            speedup_mean=whole / max(1e-9, whole - sum(one.net_s for one in outcomes)),
            saved_s={Stage.PREFILL: float(np.mean([one.saved_s for one in outcomes]))},
            spent_s={Stage.PREFILL: float(np.mean([one.alone_s for one in outcomes]))},
            net_s=net_s,
            committed_per_step=None,
            drafts=None,
            considered=(Considered(setting=setting, net_s=net_s, speedup_e2e=speedup, committed_per_step=None),),
            basis=_basis(facts, outcomes),
            not_covered=(
                "moving the chunks' KV to its places, and comparing it with what is computed",
                "chunks are computed by themselves where a prompt is the first of its start to have them; a service forgets "
                "them whenever their memory is full",
                "neighbours' steps: a prompt with chunks is computed in pieces of 512 tokens, a step each, whatever the budget",
                "the loss: quality is measured beside the speed, on answers behind joined chunks",
            ),
        )

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        if engine != "netgain":
            why = _ELSEWHERE.get(engine, "no way to do it is known there")
            raise UsageError(f"blending has no switch for {engine}: {why}")
        flags = (
            "--set",
            "engine.blending.enabled=true",
            "--set",
            f"engine.blending.ratio={setting['ratio']}",
        )
        return SwitchOn(engine=engine, flags=flags, checked_with=("0.1.0",))


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request: its prefill gets shorter by `saved_s`, and `alone_s` go to chunks that it is the first to have.
    Tokens: those in chunks, of them reused, and computed by themselves."""

    e2e_s: float
    saved_s: float = 0.0
    alone_s: float = 0.0
    chunk_tokens: int = 0
    reused_tokens: float = 0.0
    alone_tokens: int = 0

    @property
    def net_s(self) -> float:
        return self.saved_s - self.alone_s


def _outcomes(facts: Facts, cost: StepCost, recomputed: float) -> list[_Outcome]:
    """In the order in which they were recorded; a chunk is there from its second prompt on."""
    there: set[tuple[int, str]] = set()  # starts of the servers, and the chunks that they have
    found = []
    for record in facts.records:
        seen, server = facts.chunks.get(record.item_id), record.server
        prompt_tokens, cached_tokens = (
            (None, None) if server is None else (server.prompt_tokens, server.cached_tokens or 0)
        )
        if seen is None or server is None or prompt_tokens is None or cached_tokens is None:
            found.append(_Outcome(e2e_s=record.e2e_s))
            continue
        took_s = server.stages.get(Stage.PREFILL, 0.0)
        computed_s = _prefill_s(cost, cached_tokens, prompt_tokens)
        true = took_s / computed_s if computed_s > 0.0 else 0.0  # the curve's error cancels
        start = facts.starts.get(record.item_id, 0)
        fresh = {
            text: tokens for text, tokens in zip(seen.texts, seen.tokens, strict=True) if (start, text) not in there
        }
        there |= {(start, text) for text in fresh}
        joined_s = true * _joined_s(cost, seen, min(cached_tokens, seen.first), prompt_tokens, recomputed)
        alone_s = true * sum(_prefill_s(cost, 0, tokens) for tokens in fresh.values())
        found.append(
            _Outcome(
                e2e_s=record.e2e_s,
                saved_s=took_s - joined_s,
                alone_s=alone_s,
                chunk_tokens=sum(seen.tokens),
                reused_tokens=(1.0 - recomputed) * sum(seen.tokens),
                alone_tokens=sum(fresh.values()),
            )
        )
    return found


def _joined_s(cost: StepCost, seen: ChunksSeen, start: int, end: int, recomputed: float) -> float:
    """The tokens from `start` to `end`, of which those in chunks are computed in a share of the layers only."""
    share = 1.0 - (1.0 - recomputed) * sum(seen.tokens) / max(1, end - start)
    return sum(
        _prefill_s(cost, at, at + max(1, round(share * min(PIECE, end - at)))) for at in range(start, end, PIECE)
    )


def _prefill_s(cost: StepCost, start: int, end: int) -> float:
    """Computing the tokens from `start` to `end`, alone, in steps no longer than the longest that was measured."""
    longest = max((point.tokens for point in cost.points if point.batch == 1), default=1)
    return sum(cost.prefill(min(longest, end - at), at).seconds for at in range(start, end, longest))


def _basis(facts: Facts, outcomes: list[_Outcome]) -> str:
    told = facts.blending
    tokens, reused = sum(one.chunk_tokens for one in outcomes), sum(one.reused_tokens for one in outcomes)
    with_some = sum(one.chunk_tokens > 0 for one in outcomes)
    taken = ""
    if facts.kv_token_bytes is not None:
        taken = f", whose KV of {reused * facts.kv_token_bytes / 1e6:,.1f} MB is put in place instead"
    found = "" if told.says is None else f" ({told.says})"
    return (
        f"{with_some} of {len(outcomes)} recorded prompts have {tokens:,} tokens in chunks; at ratio {told.ratio:g}, "
        f"{told.source}{found}, {reused:,.0f} of them are not computed anew in the mean of the layers{taken}, and "
        f"{sum(one.alone_tokens for one in outcomes):,} are computed by themselves first; priced by the step-cost curve, in "
        "proportion to what each prompt's prefill took"
    )
