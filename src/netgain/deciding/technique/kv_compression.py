"""KV coded on its way to tiers and back: predicted from what recorded requests waited for their KV, and from what each codec was
measured to save and to take on this model. Encode, move and decode must beat moving it raw, by the formula that serving uses."""

import msgspec
import numpy as np

from netgain.cost.compression import Rates, choose
from netgain.cost.link import LinkEstimate, LinkFit
from netgain.deciding.technique.codecs_told import MeasuredCodec
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.kv_compression_outside import cannot_apply_outside, predict_outside
from netgain.deciding.technique.kv_compression_switches import compression_switch
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.technique.replayed import bounds
from netgain.errors import UsageError
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord

_RELIEVES = "waiting for KV on its way from a tier, and the room that it takes there"
_BRINGS = "encoding of all that is stored, decoding of all that is loaded"
_MUST_REPORT = (
    "ratio, headers and tables counted",
    "encode and decode time and bytes per second",
    "bandwidth of the tier, and the break-even bandwidth above which raw is sooner",
    "objects coded and objects sent raw",
    "first-token time of requests that load",
)


class LosslessCompression:
    """Every bit comes back."""

    name = "kv-compression"
    title = "stored KV coded without loss"
    relieves = _RELIEVES
    brings = _BRINGS
    kind: Kind = "token-identical"
    reuses = True
    must_report = _MUST_REPORT

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return None  # what loads take depends on lengths and shared beginnings

    def cannot_apply(self, facts: Facts) -> str | None:
        return _cannot_apply(facts, lossy=False)

    def predict(self, facts: Facts) -> Prediction:
        return _predict(self.name, facts, lossy=False)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return compression_switch(engine, setting)


class LossyCompression:
    """Rounded, and entropy-coded by some; only codecs that passed their quality gate on this model."""

    name = "kv-compression-lossy"
    title = "stored KV in fewer bits"
    relieves = _RELIEVES
    brings = f"{_BRINGS}, answers that may differ, and KV that only engines with the same codec find"
    kind: Kind = "lossy"
    reuses = True
    must_report = (
        *_MUST_REPORT,
        "what netgain cache codecs measured of the codec on this model: perplexity, KL, same first choice",
        "answers found in the prompt, which is lost before perplexity is",
    )

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return None  # quality is measured on texts of its own

    def cannot_apply(self, facts: Facts) -> str | None:
        return _cannot_apply(facts, lossy=True)

    def predict(self, facts: Facts) -> Prediction:
        return _predict(self.name, facts, lossy=True)

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return compression_switch(engine, setting)


class _Load(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request: bytes of raw KV that it loaded, none for most, and what it waited for them."""

    bytes: int
    waited_s: float
    e2e_s: float


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One codec over all requests; seconds are means per request. `loading_s` is what waiting for KV gets shorter by."""

    codec: MeasuredCodec
    ratios: np.ndarray
    speedup_mean: float
    loading_s: float
    encode_s: float

    @property
    def net_s(self) -> float:
        return self.loading_s - self.encode_s

    @property
    def setting(self) -> Setting:
        return {"codec": self.codec.name}


def _cannot_apply(facts: Facts, lossy: bool) -> str | None:
    if facts.engine != "netgain":
        return cannot_apply_outside(facts, lossy)
    if facts.kv_codecs.used:
        return f"what its tiers hold is coded already ({', '.join(facts.kv_codecs.used)})"
    if facts.kv_codecs.tiers == ():
        return (
            "the server keeps no KV beyond the device, and codecs are for what tiers hold: give it one (--set "
            "engine.kv.tiers=dram:1GiB), or ask for --technique kv-tiers first"
        )
    if not any(one.bytes for one in _loads(facts.records)):
        return (
            "no recorded request loaded KV from a tier (engine.kv.tiers): there is none, or prompts share nothing that has left "
            "the device, so there is nothing that fewer bytes would speed up (a smaller engine.cache.kv_tokens, or --workload "
            "shared-prefix, would show loads)"
        )
    if not facts.kv_codecs.measured:
        return f"what codecs save and lose on this model was not measured: netgain cache codecs {facts.model}"
    of_kind = _of_kind(facts, lossy)
    if not of_kind and facts.codec is not None:
        known = ", ".join(one.name for one in facts.kv_codecs.measured if one.lossy == lossy)
        return f"the codec {facts.codec.name} was not measured on this model among those of this technique; these were: {known}"
    if not of_kind:
        return f"no {'lossy' if lossy else 'lossless'} codec was measured to make KV of this model smaller"
    if not any(one.usable for one in of_kind):
        told = ", ".join(f"{one.name}: {one.state}" for one in of_kind)
        return f"no lossy codec passed its quality gate on this model ({told})"
    return None


def _of_kind(facts: Facts, lossy: bool) -> list[MeasuredCodec]:
    """Measured ones that make KV smaller: all, or the one that is asked for."""
    return [
        one
        for one in facts.kv_codecs.measured
        if one.lossy == lossy and one.rates.ratio > 1.0 and (facts.codec is None or facts.codec.name == one.name)
    ]


def _predict(name: str, facts: Facts, lossy: bool) -> Prediction:
    """The codec with the best gain. Where raw is sooner on the link that the requests saw, none is used and nothing is gained."""
    reason = _cannot_apply(facts, lossy)
    if reason is not None:
        raise UsageError(f"{name} cannot be predicted here: {reason}")
    if facts.engine != "netgain":
        return predict_outside(name, facts)
    loads = _loads(facts.records)
    link = _link(loads)
    codecs = [one for one in _of_kind(facts, lossy) if one.usable]
    outcomes = sorted((_outcome(one, loads, link) for one in codecs), key=lambda one: -one.net_s)
    best = outcomes[0]
    low, high = bounds(best.ratios)
    return Prediction(
        technique=name,
        setting=best.setting,
        off_is_better=best.net_s <= 0.0,
        speedup_e2e=float(np.median(best.ratios)),
        low=low,
        high=high,
        speedup_tpot=None,
        speedup_mean=best.speedup_mean,
        saved_s={Stage.KV_LOAD: best.loading_s},
        spent_s={Stage.UNATTRIBUTED: best.encode_s},
        net_s=best.net_s,
        committed_per_step=None,
        drafts=None,
        considered=tuple(
            Considered(
                setting=one.setting,
                net_s=one.net_s,
                speedup_e2e=float(np.median(one.ratios)),
                committed_per_step=None,
            )
            for one in outcomes
        ),
        basis=_basis(loads, link, best.codec.rates),
        not_covered=_not_covered(lossy),
    )


def _outcome(codec: MeasuredCodec, loads: list[_Load], link: LinkFit | None) -> _Outcome:
    loading, encode, ratios = [], [], []
    for one in loads:
        gain_s, encode_s = _gain(codec.rates, one, link)
        loading.append(gain_s)
        encode.append(encode_s)
        ratios.append(one.e2e_s / max(1e-9, one.e2e_s - gain_s + encode_s))
    whole = sum(one.e2e_s for one in loads)
    return _Outcome(
        codec=codec,
        ratios=np.array(ratios),
        speedup_mean=whole / max(1e-9, whole - sum(loading) + sum(encode)),
        loading_s=sum(loading) / len(loads),
        encode_s=sum(encode) / len(loads),
    )


def _gain(rates: Rates, one: _Load, link: LinkFit | None) -> tuple[float, float]:
    """What its wait gets shorter by, and what encoding takes; nothing where raw is sooner. Coded, a load ends sooner as a whole,
    so where much of it was hidden behind the queue the wait gets no longer."""
    if not one.bytes or link is None or link.bytes_per_s is None or choose(one.bytes, link, {"it": rates}) is None:
        return 0.0, 0.0
    moved_s = min(one.waited_s, one.bytes / link.bytes_per_s)  # the rest is latency, which stays
    gain_s = moved_s * (1.0 - 1.0 / rates.ratio) - one.bytes / rates.decode_bytes_per_s
    return max(0.0, gain_s), one.bytes / rates.encode_bytes_per_s


def _loads(records: tuple[ClientRecord, ...]) -> list[_Load]:
    found = []
    for one in records:
        kv = None if one.server is None else one.server.kv
        loaded = kv is not None and kv.loaded_tokens > 0
        found.append(
            _Load(
                bytes=kv.bytes if kv is not None and loaded else 0,
                waited_s=max(0.0, kv.waited_s) if kv is not None and loaded else 0.0,
                e2e_s=one.e2e_s,
            )
        )
    return found


def _link(loads: list[_Load]) -> LinkFit | None:
    """As requests saw it: what of a transfer was hidden behind the queue counts as no time, since nothing is saved of it."""
    seen = LinkEstimate()
    for one in loads:
        if one.bytes:
            seen.add(one.bytes, one.waited_s)
    return seen.fit()


def _basis(loads: list[_Load], link: LinkFit | None, rates: Rates) -> str:
    with_some = [one for one in loads if one.bytes]
    speed = (
        "at an unknown rate" if link is None or link.bytes_per_s is None else f"at {link.bytes_per_s / 1e6:,.0f} MB/s"
    )
    return (
        f"{len(with_some)} of {len(loads)} recorded requests loaded {sum(one.bytes for one in with_some) / 1e6:,.1f} MB of KV, "
        f"{speed} as they waited for it; raw is sooner above {rates.break_even_bytes_per_s() / 1e6:,.0f} MB/s by what was "
        f"measured of the codec on this model (ratio {rates.ratio:.2f})"
    )


def _not_covered(lossy: bool) -> tuple[str, ...]:
    said = [
        "each load is charged with one encoding, as the server itself decides; what is stored and never loaded is encoded, too, "
        "and computing shares its processor with that",
        "a policy that goes by measurement loads more where loads are sooner",
        "the room of a tier holds more of what is coded, so more is found there",
    ]
    if lossy:
        said.append(
            "the loss: quality is measured beside the speed, on texts whose first half the candidate loads from its tiers; "
            "netgain cache codecs measured the codec by itself, and the server refuses what has not passed"
        )
    return tuple(said)
