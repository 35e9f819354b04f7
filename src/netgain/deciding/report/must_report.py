"""The figures that a technique owes its reader, each beside what the other arm has of it: here those of drafts."""

import statistics
from collections.abc import Callable, Mapping
from types import MappingProxyType

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.draft_account import ArmMemory, DraftAccount
from netgain.deciding.report.figures import number, seconds, share, size
from netgain.deciding.report.must_report_kv import KV_ROWS
from netgain.deciding.report.must_report_row import NONE, Row
from netgain.deciding.report.outcome import ArmReport, Outcome
from netgain.ledger.stage import Stage

UNKNOWN = "unknown"


def reported(outcome: Outcome) -> tuple[Row, ...]:
    """For all that the technique must report and that has figures, in its order; nothing where none was tried. What is not known
    says so."""
    if outcome.analysis is None:
        return ()
    rows: list[Row] = []
    for asked in outcome.must_report:
        rows += [row for row in ROWS.get(asked, _nothing)(outcome) if row not in rows]
    return tuple(rows)


def _nothing(_: Outcome) -> list[Row]:
    return []


def _committed(outcome: Outcome) -> list[Row]:
    drafting, account = outcome.drafting, _account(outcome)
    told = [row.measured for row in outcome.scores if row.figure == "tokens committed per step"]
    committed = drafting.committed_per_step if drafting else told[0] if told else None
    return [
        Row("tokens committed per step after the first", number(1.0), number(committed)),
        Row("drafted tokens that did not stand, per token of the answers", NONE, number(account.wasted_per_token)),
    ]


def _by_position(outcome: Outcome) -> list[Row]:
    kept = outcome.drafting.counts.acceptance if outcome.drafting else ()
    told = ", ".join(f"{place}: {share(one)}" for place, one in enumerate(kept, start=1))
    return [Row("accepted, of the drafts that reached a position", NONE, told or UNKNOWN)]


def _by_length(outcome: Outcome) -> list[Row]:
    means = outcome.drafting.counts.by_length_means if outcome.drafting else {}
    told = ", ".join(f"{length}: {share(mean.acceptance)}" for length, mean in means.items())
    return [*_by_position(outcome), Row("accepted, of the tokens of drafts of a length", NONE, told or UNKNOWN)]


def _stages(outcome: Outcome) -> list[Row]:
    return [
        Row(f"{name} time per request, on the mean", *(_mean_s(arm, stage) for arm in _arms(outcome)))
        for name, stage in (("verify", Stage.VERIFY), ("draft", Stage.DRAFT))
    ]


def _mean_s(arm: ArmReport | None, stage: Stage) -> str:
    if arm is None or not arm.stage_share or not arm.e2e_s:
        return UNKNOWN  # the server does not tell its stages
    return seconds(arm.stage_share.get(stage, 0.0) * statistics.fmean(arm.e2e_s))


def _tpot(outcome: Outcome) -> list[Row]:
    before, after = (seconds(statistics.median(arm.tpot_s) if arm and arm.tpot_s else None) for arm in _arms(outcome))
    return [Row("time per output token, median", before, after)]


def _speed(outcome: Outcome) -> list[Row]:
    before, after = (number(arm.tokens_per_s if arm else None, 1) for arm in _arms(outcome))
    return [Row("output tokens per second", before, after)]


def _memory(outcome: Outcome) -> list[Row]:
    """Twice: as both arms ran, and as if the candidate had to live in the baseline's memory."""
    account = _account(outcome)
    before, after = account.baseline, account.candidate

    def row(figure: str, write: Callable[[ArmMemory], str]) -> Row:
        return Row(figure, write(before), write(after))

    same, length = account.same_memory_tokens, number(account.request_tokens, 0)
    return [
        row("memory of the draft's weights", lambda arm: size(arm.draft_weight_bytes)),
        row("bytes of a token in the KV cache", lambda arm: _count(arm.kv_token_bytes)),
        row("of these, the draft's KV and features", lambda arm: _count(arm.draft_kv_token_bytes)),
        row("KV tokens that fit, as both ran", lambda arm: _count(arm.kv_tokens)),
        row("requests of mean length that fit, as both ran", lambda arm: number(account.requests(arm.kv_tokens), 1)),
        Row("KV tokens that fit in the memory of the baseline's KV", _count(before.kv_tokens), _count(same)),
        Row(
            "requests of mean length that fit there",
            number(account.requests(before.kv_tokens), 1),
            f"{number(account.requests(same), 1)}{_fewer(account.fewer(same))}",
        ),
        Row("mean length of a request, prompt and answer, in tokens", length, length),
    ]


def _origin(outcome: Outcome) -> list[Row]:
    return [Row("what the draft was trained on, and for which target", NONE, _account(outcome).origin or UNKNOWN)]


def _suffix(outcome: Outcome) -> list[Row]:
    counts = outcome.drafting.counts if outcome.drafting else None
    asked = counts.steps + counts.empty + counts.declined if counts else 0
    found = share((counts.steps + counts.declined) / asked) if counts and asked else UNKNOWN
    return [
        Row("memory of the suffix indexes at the end", NONE, size(_account(outcome).candidate.suffix_index_bytes)),
        Row("steps that found a draft, in their own text or in earlier answers", NONE, found),
        *_memory(outcome),
    ]


def _fewer(requests: float | None) -> str:
    return "" if requests is None else f" ({number(requests, 1)} fewer)"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _account(outcome: Outcome) -> DraftAccount:
    return outcome.draft_account or DraftAccount(baseline=ArmMemory(), candidate=ArmMemory())


def _arms(outcome: Outcome) -> tuple[ArmReport | None, ArmReport | None]:
    arms = {arm.name: arm for arm in outcome.arms}
    return arms.get(BASELINE), arms.get(CANDIDATE)


# By the words in which techniques ask (their `must_report`). What is not here is told in sections of its own.
ROWS: Mapping[str, Callable[[Outcome], list[Row]]] = MappingProxyType(
    {
        "tokens committed per step": _committed,
        "acceptance per draft position": _by_position,
        "acceptance per draft position and per draft length": _by_length,
        "verify and draft time": _stages,
        "time per output token": _tpot,
        "output tokens per second": _speed,
        "KV memory taken from other requests (none: drafts use the request's own blocks)": _memory,
        "memory of the draft's weights, and KV tokens that fit in both arms": _memory,
        "what the draft was trained on, and for which target": _origin,
        "memory of the suffix indexes, and how similar requests are to earlier ones": _suffix,
        **KV_ROWS,
    }
)
