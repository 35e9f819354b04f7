"""Codecs for stored KV on engines that tell of no single request what it loaded: predicted from what their counters gained
while the baseline was recorded, and from what the user says that the codec saves and takes."""

import math

from netgain.cost.compression import Rates
from netgain.deciding.technique.codec_asked import FORMS, CodecAsked
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kv_int8 import VALUE_BYTES
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.errors import UsageError
from netgain.ledger.stage import Stage

_LOADS = {
    "vllm": "--kv-offloading-size, or LMCacheConnectorV1 with a remote store of its own, in --flags",
    "sglang": "--enable-hierarchical-cache in --flags",
}


def cannot_apply_outside(facts: Facts, lossy: bool) -> str | None:
    if facts.engine not in _LOADS:
        return f"{facts.engine} has no codec for the KV that it keeps beyond the device"
    if not lossy:
        return f"{facts.engine} has no codec without loss for KV; those with loss are kv-compression-lossy"
    if facts.codec is None:
        return f"which codec is tried on {facts.engine} has to be said, with what it saves and takes: --codec {FORMS}"
    if _rates(facts, facts.codec) is None:
        return (
            f"what the codec {facts.codec.name} saves and takes is not known"
            + ("" if facts.engine == "sglang" else f": measure it with that engine and tell it (--codec {FORMS})")
            + (
                ", since the server does not tell in which type it keeps KV, or keeps it in 8 bits already"
                if facts.engine == "sglang"
                else ""
            )
        )
    if facts.kv_moved is None:
        return (
            f"{facts.engine}'s counters tell of no KV that was loaded from beyond the device while the baseline was recorded, so "
            f"there is nothing that fewer bytes would speed up: give both arms a tier ({_LOADS[facts.engine]}) and prompts "
            f"that share "
            "more than the device keeps (--workload shared-prefix)"
        )
    return None


def predict_outside(name: str, facts: Facts) -> Prediction:
    """At most: as if every request had waited for its share of what was loaded."""
    reason = cannot_apply_outside(facts, lossy=True)
    codec, moved = facts.codec, facts.kv_moved
    rates = None if codec is None else _rates(facts, codec)
    if reason is not None or codec is None or moved is None or rates is None or not facts.records:
        raise UsageError(f"{name} cannot be predicted here: {reason or 'no request was recorded'}")
    count = len(facts.records)
    loaded, waited_s = moved.bytes / count, moved.seconds / count
    rate = moved.bytes / moved.seconds
    gain_s = waited_s * (1.0 - 1.0 / rates.ratio) - loaded / rates.decode_bytes_per_s
    encode_s = loaded / rates.encode_bytes_per_s
    net_s = gain_s - encode_s
    mean_s = sum(one.e2e_s for one in facts.records) / count
    speedup = mean_s / max(1e-9, mean_s - net_s)
    setting: Setting = {"codec": codec.name, **({} if codec.url is None else {"url": codec.url})}
    return Prediction(
        technique=name,
        setting=setting,
        off_is_better=net_s <= 0.0,
        speedup_e2e=speedup,
        low=None,
        high=None,
        speedup_tpot=None,
        speedup_mean=speedup,
        saved_s={Stage.KV_LOAD: gain_s},
        spent_s={Stage.UNATTRIBUTED: encode_s},
        net_s=net_s,
        committed_per_step=None,
        drafts=None,
        considered=(Considered(setting=setting, net_s=net_s, speedup_e2e=speedup, committed_per_step=None),),
        basis=(
            f"an upper limit, of means: {moved.bytes / 1e6:,.1f} MB were loaded in {moved.seconds:.2f} s ({rate / 1e6:,.0f} "
            f"MB/s) while "
            f"{count} requests were recorded, by {moved.source}; ratio {rates.ratio:.2f} "
            + ("by the widths of both types" if facts.engine == "sglang" else "as it was told, not measured here")
        ),
        not_covered=(
            "what was loaded while a request waited for something else anyway gains nothing by coming sooner",
            "what is stored and never loaded is encoded, too",
            "the room beyond the device holds more of what is coded, so more is found there",
            "the loss: quality is measured beside the speed, and decides with it",
        ),
    )


def _rates(facts: Facts, codec: CodecAsked) -> Rates | None:
    """SGLang's fp8 is the width of what the device keeps: nothing is coded on the way. Others are as the user says."""
    if facts.engine == "sglang":
        before = VALUE_BYTES.get(facts.kv_dtype or "")
        return None if before is None else Rates(ratio=before, encode_bytes_per_s=math.inf, decode_bytes_per_s=math.inf)
    return codec.rates
