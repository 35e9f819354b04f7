"""The figures that techniques with tiers owe their reader, each beside what the other arm has of it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.figures import number, rate, seconds, share
from netgain.deciding.report.kv_account import KVAccount, median, quantile
from netgain.deciding.report.must_report_row import NONE, Row
from netgain.deciding.report.outcome import Outcome


def _row(outcome: Outcome, figure: str, write: Callable[[KVAccount], str]) -> Row:
    arms = {arm.name: arm.kv for arm in outcome.arms}
    before, after = (NONE if (account := arms.get(name)) is None else write(account) for name in (BASELINE, CANDIDATE))
    return Row(figure, before, after)


def _hits(outcome: Outcome) -> list[Row]:
    return [
        _row(outcome, "prompt tokens that came from tiers", lambda arm: share(arm.hit_share)),
        _row(outcome, "requests that loaded", lambda arm: f"{len(arm.lengths)} of {arm.asked}"),
        _row(outcome, "tokens of a load, median and p95", lambda arm: _two(arm.lengths, _whole)),
    ]


def _lookup(outcome: Outcome) -> list[Row]:
    return [_row(outcome, "time of asking the tiers, median and p95", lambda arm: _two(arm.lookups_s, seconds))]


def _transfer(outcome: Outcome) -> list[Row]:
    return [
        _row(outcome, "what a load was waited for, median and p95", lambda arm: _two(arm.waits_s, seconds)),
        _row(outcome, "the same, p99", lambda arm: seconds(quantile(arm.waits_s, 0.99))),
        _row(outcome, "bytes that came, per second waited", lambda arm: rate(_speed(arm), "bytes")),
    ]


def _beaten(outcome: Outcome) -> list[Row]:
    figure = "loads that took longer than computing was predicted to"
    return [_row(outcome, figure, lambda arm: f"{arm.beaten} of {len(arm.lengths)}")]


def _first(outcome: Outcome) -> list[Row]:
    return [
        _row(outcome, "first token, median, of requests that loaded", lambda arm: seconds(median(arm.ttft_loaded_s))),
        _row(
            outcome,
            "first token, median, of requests for which nothing was found",
            lambda arm: seconds(median(arm.ttft_nothing_s)),
        ),
    ]


def _ratio(outcome: Outcome) -> list[Row]:
    return [_row(outcome, "bytes of KV over bytes that came, headers counted", lambda arm: number(arm.ratio))]


def _decoding(outcome: Outcome) -> list[Row]:
    return [
        _row(
            outcome,
            "decoding, per request that loaded",
            lambda arm: seconds(arm.decode_s / len(arm.lengths)) if arm.coded else NONE,
        ),
        _row(outcome, "KV decoded per second", lambda arm: rate(arm.decoded_per_s, "bytes") if arm.coded else NONE),
    ]


def _coded(outcome: Outcome) -> list[Row]:
    figure = "loads that came coded (others raw: the server holds raw to be sooner there)"
    return [
        _row(outcome, figure, lambda arm: f"{arm.coded} of {len(arm.lengths)}"),
        _row(outcome, "forms in which loads came", _forms),
    ]


def _forms(account: KVAccount) -> str:
    return ", ".join(f"{form}: {count}" for form, count in sorted(account.forms.items())) or NONE


def _speed(account: KVAccount) -> float | None:
    waited_s = sum(account.waits_s)
    return account.moved_bytes / waited_s if waited_s else None


def _two(values: tuple[float, ...], write: Callable[[float | None], str]) -> str:
    return f"{write(median(values))}, {write(quantile(values, 0.95))}" if values else NONE


def _whole(value: float | None) -> str:
    return number(value, 0)


KV_ROWS: Mapping[str, Callable[[Outcome], list[Row]]] = MappingProxyType(
    {
        "token hit rate, and the lengths of hits": _hits,
        "lookup time": _lookup,
        "transfer time and bytes per second, p95 and p99": _transfer,
        "loads that computing would have beaten": _beaten,
        "first-token time, cold and warm apart": _first,
        "first-token time of requests that load": _first,
        "ratio, headers and tables counted": _ratio,
        "encode and decode time and bytes per second": _decoding,
        "bandwidth of the tier, and the break-even bandwidth above which raw is sooner": _transfer,
        "objects coded and objects sent raw": _coded,
    }
)
