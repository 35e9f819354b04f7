"""Chunks of prompts computed once, apart, and joined: predicted from what the requests that mark chunks spent on prefill. Lossy,
so gated by quality: the ratio of what is computed anew comes from a calibration of the model, never from a constant."""

import numpy as np

from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

SETTING: Setting = {"ratio": "calibrated"}
PAYS = 1.005  # a predicted speedup below this is less than can be told from none
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
        if not any(_marked(facts)):
            return "no recorded request marks chunks of its prompt (netgain.chunks), so there is nothing to join"
        return None

    def predict(self, facts: Facts) -> Prediction:
        """At most: all prefill of the chunks' share of each prompt is saved. How much the calibrated ratio leaves of it, the
        server knows when it starts."""
        marked = _marked(facts)
        if not any(marked):
            raise UsageError("blending cannot be predicted where no request marks chunks")
        saved, whole = [], []
        for one, share in zip(facts.records, marked, strict=True):
            spent_s = 0.0 if one.server is None else one.server.stages.get(Stage.PREFILL, 0.0)
            saved.append(spent_s * share)
            whole.append(one.e2e_s)
        ratios = [total / max(1e-9, total - gain) for total, gain in zip(whole, saved, strict=True)]
        net_s, speedup = float(np.mean(saved)), float(np.median(ratios))
        return Prediction(
            technique=self.name,
            setting=SETTING,
            off_is_better=speedup < PAYS,
            speedup_e2e=speedup,
            low=None,
            high=None,
            speedup_tpot=None,
            speedup_mean=sum(whole) / max(1e-9, sum(whole) - sum(saved)),
            saved_s={Stage.PREFILL: net_s},
            spent_s={},
            net_s=net_s,
            committed_per_step=None,
            drafts=None,
            considered=(Considered(setting=SETTING, net_s=net_s, speedup_e2e=speedup, committed_per_step=None),),
            basis="an upper limit: the chunks' share of each prompt times the prefill that the request waited for",
            not_covered=(
                "what the calibrated ratio computes anew; without a calibration that is everything, and nothing is saved",
                "the first layer, which computes all tokens to find those that deviate",
                "chunks that are not there yet and are computed by themselves first",
                "neighbours' steps: a prompt with chunks is computed in pieces of 512 tokens, a step each, whatever the budget",
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


def _marked(facts: Facts) -> list[float]:
    """Of each record, the share of the prompt in chunks that were computed with it, and not found."""
    shares = []
    for one in facts.records:
        blending = None if one.server is None else one.server.blending
        tokens = 0 if one.server is None else one.server.prompt_tokens
        shares.append(blending.recomputed_tokens / tokens if blending is not None and tokens else 0.0)
    return shares
