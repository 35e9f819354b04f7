"""KV beyond the device: predicted from the recorded prompts' shared beginnings (the hit-rate curve), what computing them was
measured to cost, and what moving them costs at the rate at which this machine copies, or reads and writes a folder."""

from collections.abc import Sequence

import msgspec
import numpy as np
from blake3 import blake3

from netgain.cost.link import LinkFit
from netgain.cost.loading import GROUP_BLOCKS, LAYER_GROUPS, Choice, Why, choose, layered
from netgain.cost.reuse import ReuseCurve, reuse_curve
from netgain.cost.step_cost import StepCost
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.kind import Kind
from netgain.deciding.technique.prediction import Considered, Prediction, Setting
from netgain.deciding.technique.protocol import SwitchOn
from netgain.deciding.technique.replayed import bounds
from netgain.deciding.technique.tier_asked import TierAsked
from netgain.deciding.technique.tiering_link import Link, link_to
from netgain.deciding.technique.tiering_switches import tiering_switch
from netgain.deciding.technique.tiering_words import not_covered, size_unknown
from netgain.errors import UsageError
from netgain.ledger.records import RequestRecord
from netgain.ledger.stage import Stage
from netgain.measuring.client.record import ClientRecord

BLOCK_TOKENS = 16  # in which prompts are compared
SMALLEST_GIB = 0.125
SIZES = 12  # doubling from the smallest that is not less than the device's own
NEAR = 0.99  # of the best gain: the smallest tier with so much of it is proposed
LOOKUP_S = 5e-4  # asking a tier of this machine: a turn of the loop and a message between threads
EXCHANGE_S = 2e-4  # of a group of blocks: a message between threads there and back
_GIB = float(1 << 30)


class KVTiering:
    """KV that the device has no room for is kept in memory, on disk or beyond, and loaded where that is sooner."""

    name = "kv-tiers"
    title = "tiered KV cache"
    relieves = "prefill of prompts whose beginning was computed before and has left the device, and the room for KV"
    brings = (
        "lookups of every prompt, transfers, storing what is computed, memory or disk, and KV that has to be kept apart"
    )
    kind: Kind = "token-identical"
    reuses = True
    must_report = (
        "token hit rate, and the lengths of hits",
        "lookup time",
        "transfer time and bytes per second, p95 and p99",
        "cold overhead: lookup and store where nothing is found",
        "loads that computing would have beaten",
        "first-token time, cold and warm apart",
    )

    def cannot_judge(self, synthetic_text: bool) -> str | None:
        return None  # lengths and shared beginnings decide

    def cannot_apply(self, facts: Facts) -> str | None:
        asked = _asked(facts)
        if len(asked) < 2:
            return "fewer than two recorded requests show their token ids, so nothing is known of shared beginnings"
        if facts.computing.cost is None:
            return f"what computing a prompt costs is not known ({facts.computing.missing or 'not measured'})"
        if facts.kv_token_bytes is None or facts.kv_tokens is None:
            return size_unknown(facts)
        if not _curve(asked).hits(None).any():
            if _curve(_asked(msgspec.structs.replace(facts, starts={}))).hits(None).any():
                return (
                    f"none of the {len(asked)} prompts that are tried begins like an earlier one of the same start of the "
                    "servers: so few would show no load (the form without --quick, or a larger --budget, tries more)"
                )
            return (
                f"no recorded prompt begins with {BLOCK_TOKENS} tokens of an earlier one, so there is nothing to load"
            )
        if not any(one.extra(found) for one, found in zip(asked, _curve(asked).hits(None), strict=True)):
            return "the device still had all that prompts shared with earlier ones, so a tier beyond it would find nothing more"
        return None

    def predict(self, facts: Facts) -> Prediction:
        """The smallest tier with nearly the best gain, or of the size that was asked for: netgain's under its policy, which
        loads what is predicted to be sooner, others' loading what they find."""
        computing = facts.computing
        if computing.cost is None or facts.kv_token_bytes is None or facts.kv_tokens is None:
            raise UsageError("KV tiers cannot be predicted without a measured step cost and the size of KV")
        asked, link = _asked(facts), link_to(facts)
        curve = _curve(asked)
        told = facts.tier.gib
        outcomes = [
            _outcome(gib, computing.cost, facts.kv_token_bytes, asked, curve, link)
            for gib in (
                _sizes(facts.kv_tokens * facts.kv_token_bytes, curve.distinct, facts.kv_token_bytes)
                if told is None
                else (told,)
            )
        ]
        most = max(outcome.net_s for outcome in outcomes)
        best = next(one for one in outcomes if one.net_s >= (NEAR * most if most > 0.0 else most))
        low, high = bounds(best.ratios)
        return Prediction(
            technique=self.name,
            setting=_setting(facts.tier, best.gib),
            off_is_better=best.net_s <= 0.0,
            speedup_e2e=float(np.median(best.ratios)),
            low=low,
            high=high,
            speedup_tpot=None,
            speedup_mean=best.speedup_mean,
            saved_s={Stage.PREFILL: best.saved_s},
            spent_s={Stage.CACHE_LOOKUP: LOOKUP_S, Stage.KV_LOAD: best.load_s, Stage.UNATTRIBUTED: best.store_s},
            net_s=best.net_s,
            committed_per_step=None,
            drafts=None,
            considered=tuple(
                Considered(
                    setting=_setting(facts.tier, one.gib),
                    net_s=one.net_s,
                    speedup_e2e=float(np.median(one.ratios)),
                    committed_per_step=None,
                )
                for one in sorted(outcomes, key=lambda one: -one.net_s)
            ),
            basis=(
                f"stack distances of {len(asked)} recorded prompts: {best.tokens} of {sum(one.tokens for one in asked)} prompt "
                f"tokens would come from the tier; prefill by the step cost {computing.basis}; transfers {link.says}"
            ),
            not_covered=not_covered(facts, best.gib),
        )

    def switch_on(self, engine: str, setting: Setting) -> SwitchOn:
        return tiering_switch(engine, setting)


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded request: `cached` of its prompt's `tokens` came from the device's own cache, the rest took `prefill_s`."""

    tokens: int
    output_tokens: int
    cached: int
    prefill_s: float
    e2e_s: float
    keys: tuple[bytes, ...]

    def extra(self, blocks: int) -> int:
        """Blocks beyond the device's, of `blocks` leading ones; the last token is always computed."""
        return max(0, min(int(blocks), (self.tokens - 1) // BLOCK_TOKENS) - self.cached // BLOCK_TOKENS)


class _Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One size over all requests; seconds are means per request."""

    gib: float
    ratios: np.ndarray
    speedup_mean: float
    saved_s: float
    load_s: float
    store_s: float
    net_s: float
    tokens: int


def _outcome(
    gib: float, cost: StepCost, token_bytes: int, asked: Sequence[_Asked], curve: ReuseCurve, link: Link
) -> _Outcome:
    hits = curve.hits(int(gib * _GIB / (token_bytes * BLOCK_TOKENS)))
    saved, loads, stores, ratios, loaded = [], [], [], [], 0
    for one, blocks in zip(asked, hits, strict=True):
        choice = _choice(cost, one, one.extra(blocks), token_bytes * BLOCK_TOKENS, link)
        extra = choice.blocks * BLOCK_TOKENS
        left_s = _compute_s(cost, one, choice.blocks)
        gain_s, load_s = one.prefill_s - left_s, (choice.warm_s or 0.0) - left_s
        store_s = (one.tokens + one.output_tokens - one.cached - extra) * token_bytes / link.store
        loaded += extra
        saved.append(gain_s)
        loads.append(load_s)
        stores.append(store_s)
        ratios.append(one.e2e_s / max(1e-9, one.e2e_s - gain_s + load_s + LOOKUP_S + store_s))
    count, whole = len(asked), sum(one.e2e_s for one in asked)
    net_s = (sum(saved) - sum(loads) - sum(stores)) / count - LOOKUP_S
    return _Outcome(
        gib=gib,
        ratios=np.array(ratios),
        speedup_mean=whole / max(1e-9, whole - net_s * count),
        saved_s=sum(saved) / count,
        load_s=sum(loads) / count,
        store_s=sum(stores) / count,
        net_s=net_s,
        tokens=loaded,
    )


def _choice(cost: StepCost, one: _Asked, blocks: int, block_bytes: int, link: Link) -> Choice:
    """What netgain's policy would do with so many blocks in the tier, by its own formula: the end of what it loads comes by
    layers while the rest is computed. Other engines load all of it first."""
    if not link.policy:
        load_s = EXCHANGE_S + blocks * block_bytes / link.load if blocks else 0.0
        left_s = _compute_s(cost, one, blocks)
        return Choice(blocks, load_s + left_s, _compute_s(cost, one, 0), Why.ALWAYS)
    places, links = [0] * blocks, [LinkFit(EXCHANGE_S, link.load, 0.0, 0)]

    def hidden_s(loaded: int) -> float:
        pass_s = _first_step_s(cost, one, loaded)
        return layered(places[:loaded], links, block_bytes, GROUP_BLOCKS, LAYER_GROUPS, pass_s).hidden_s

    return choose(places, links, block_bytes, lambda loaded: _compute_s(cost, one, loaded), GROUP_BLOCKS, hidden_s)


def _compute_s(cost: StepCost, one: _Asked, blocks: int) -> float:
    """Of the recorded prefill, what is left behind so many blocks beyond the device's, by the measured cost of steps."""
    return one.prefill_s * _share(cost, one, cost.prompt_s(one.cached + blocks * BLOCK_TOKENS, one.tokens))


def _first_step_s(cost: StepCost, one: _Asked, blocks: int) -> float:
    """Of that, the first step's, behind which layers may come."""
    start = one.cached + blocks * BLOCK_TOKENS
    longest = max((point.tokens for point in cost.points if point.batch == 1), default=1)
    return one.prefill_s * _share(cost, one, cost.prompt_s(start, min(one.tokens, start + longest)))


def _share(cost: StepCost, one: _Asked, seconds: float) -> float:
    """Of what the whole prefill takes by the measured cost."""
    whole_s = cost.prompt_s(one.cached, one.tokens)
    return seconds / whole_s if whole_s > 0.0 else 1.0


def _asked(facts: Facts) -> list[_Asked]:
    """The usable requests in order of arrival; without a count of cached tokens, those the device's room would have held."""
    found = [(one, one.server) for one in facts.records if one.ok and one.server is not None]
    usable = sorted(
        ((one, server) for one, server in found if server.prompt_ids is not None and server.ttft_stages is not None),
        key=lambda pair: pair[1].received_s,
    )
    keys = [_keys(server.prompt_ids or (), facts.starts.get(one.item_id, 0)) for one, server in usable]
    room = 0 if facts.kv_tokens is None else facts.kv_tokens // BLOCK_TOKENS
    kept = reuse_curve(keys).hits(room) if keys else np.zeros(0, np.int64)
    return [
        _one(one, server, chain, int(blocks)) for (one, server), chain, blocks in zip(usable, keys, kept, strict=True)
    ]


def _one(record: ClientRecord, server: RequestRecord, keys: tuple[bytes, ...], kept: int) -> _Asked:
    cached = server.cached_tokens
    if cached is None:
        cached = min(kept * BLOCK_TOKENS, max(0, server.prompt_tokens - 1))
    return _Asked(
        tokens=server.prompt_tokens,
        output_tokens=server.output_tokens,
        cached=cached,
        prefill_s=(server.ttft_stages or {}).get(Stage.PREFILL, 0.0),
        e2e_s=record.e2e_s or 0.0,
        keys=keys,
    )


def _keys(tokens: Sequence[int], start: int) -> tuple[bytes, ...]:
    """Of the prompt's whole blocks, each depending on all tokens before it, and on the start of the servers under which it is
    tried."""
    data = np.asarray(tokens, dtype="<u4").tobytes()
    keys, parent = [], start.to_bytes(4, "little")
    for offset in range(0, len(data) // (4 * BLOCK_TOKENS) * 4 * BLOCK_TOKENS, 4 * BLOCK_TOKENS):
        parent = blake3(parent + data[offset : offset + 4 * BLOCK_TOKENS]).digest()
        keys.append(parent)
    return tuple(keys)


def _curve(asked: Sequence[_Asked]) -> ReuseCurve:
    return reuse_curve([one.keys for one in asked])


def _sizes(device_bytes: float, distinct: int, token_bytes: int) -> list[float]:
    """GiB, doubling from the device's own room (less would only repeat it) to what holds everything."""
    everything = distinct * BLOCK_TOKENS * token_bytes / _GIB
    size = SMALLEST_GIB
    while size * _GIB < device_bytes:
        size *= 2.0
    sizes = [size]
    while sizes[-1] < everything and len(sizes) < SIZES:
        sizes.append(2.0 * sizes[-1])
    return sizes


def _setting(tier: TierAsked, gib: float) -> Setting:
    folder: Setting = {"folder": tier.folder} if tier.kind == "disk" else {}
    return {"tier": tier.kind, "gib": int(gib) if gib == int(gib) else gib, **folder}
