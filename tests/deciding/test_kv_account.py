"""What a technique with tiers must report stands in its report, of both arms, by the records of the answers."""

import msgspec
import pytest

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.html import render_html
from netgain.deciding.report.kv_account import kv_account
from netgain.deciding.report.must_report import ROWS, reported
from netgain.deciding.report.outcome import Outcome
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.ledger.records import KVReuse
from tests.deciding.test_report import outcome_of, trial_of

OF_TIERS = ("kv-tiers", "kv-compression", "kv-compression-lossy")
# What stands in other sections: what the codec saves and loses here (prediction, quality), what storing took (handoffs).
ELSEWHERE = {
    "what netgain cache codecs measured of the codec on this model: perplexity, KL, same first choice",
    "answers found in the prompt, which is lost before perplexity is",
    "cold overhead: lookup and store where nothing is found",
}


@pytest.fixture
def records(make_record):
    """Three that loaded, coded but for one and one of them slower than computing would have been, and two that found nothing."""
    loads = [
        KVReuse(
            why="load",
            found_tokens=tokens,
            chosen_tokens=tokens,
            loaded_tokens=tokens,
            bytes=1000 * tokens,
            moved_bytes=500 * tokens,
            waited_s=waited_s,
            lookup_s=0.002,
            decode_s=0.01,
            codecs=form,
            full_s=0.3,
            actual_s=actual_s,
        )
        for tokens, waited_s, form, actual_s in (
            (100, 0.1, "zstd", 0.2),
            (200, 0.2, "raw+zstd", 0.4),
            (300, 0.3, "raw", 0.2),
        )
    ]
    nothing = KVReuse(why="nothing_found", lookup_s=0.001)
    told = []
    for number, kv in enumerate((*loads, nothing, nothing, None)):
        one = make_record(f"p{number}", start_s=float(number), tokens=4, token_s=0.01, output=(1, 2, 3, 4))
        told.append(msgspec.structs.replace(one, server=msgspec.structs.replace(one.server, prompt_tokens=400, kv=kv)))
    return told


def test_loads_are_counted_as_the_records_tell_them(records):
    account = kv_account(records)
    assert account is not None
    assert (account.asked, len(account.lengths), account.hit_share) == (5, 3, 600 / 2000)
    assert (account.ratio, account.coded, account.forms) == (2.0, 2, {"zstd": 1, "raw+zstd": 1, "raw": 1})
    assert account.beaten == 1
    assert (len(account.ttft_loaded_s), len(account.ttft_nothing_s)) == (3, 2)
    assert account.decoded_per_s == pytest.approx(600_000 / 0.03)


def test_where_all_came_raw_nothing_was_decoded_and_no_rate_is_told(records):
    raw = [
        msgspec.structs.replace(
            one, server=msgspec.structs.replace(one.server, kv=msgspec.structs.replace(one.server.kv, codecs="raw"))
        )
        for one in records[:3]
    ]
    account = kv_account(raw)
    assert account is not None
    assert (account.coded, account.decoded_per_s) == (0, None)


def test_without_tiers_there_is_no_account(records):
    assert kv_account(records[5:]) is None
    assert kv_account([]) is None


@pytest.mark.parametrize("name", OF_TIERS)
def test_all_that_a_technique_of_tiers_must_report_has_figures(name):
    assert set(CATALOGUE[name].must_report) - ELSEWHERE <= set(ROWS)


def test_the_report_shows_them_beside_the_arm_without_tiers(make_record, records):
    tried: Outcome = outcome_of(trial_of(make_record, groups=1))
    arms = tuple(
        msgspec.structs.replace(arm, kv=kv_account(records) if arm.name == CANDIDATE else None) for arm in tried.arms
    )
    assert {arm.name for arm in arms} == {BASELINE, CANDIDATE}
    asked = tuple(dict.fromkeys(one for name in OF_TIERS for one in CATALOGUE[name].must_report))
    outcome = msgspec.structs.replace(tried, must_report=asked, arms=arms)
    rows = {row.figure: row[1:] for row in reported(outcome)}
    assert len(rows) == len(reported(outcome)), "a figure that two ask for is told once"
    assert rows["prompt tokens that came from tiers"] == ("–", "30.0%")
    assert rows["requests that loaded"] == ("–", "3 of 5")
    assert rows["tokens of a load, median and p95"] == ("–", "200, 290")
    assert rows["time of asking the tiers, median and p95"] == ("–", "2.00 ms, 2.00 ms")
    assert rows["bytes of KV over bytes that came, headers counted"] == ("–", "2.00")
    assert rows["forms in which loads came"] == ("–", "raw: 1, raw+zstd: 1, zstd: 1")
    assert rows["loads that took longer than computing was predicted to"] == ("–", "1 of 3")
    raw = tuple(
        msgspec.structs.replace(arm, kv=kv_account(records[2:3]) if arm.name == BASELINE else arm.kv) for arm in arms
    )
    beside = {row.figure: row[1:] for row in reported(msgspec.structs.replace(outcome, arms=raw))}
    assert beside["decoding, per request that loaded"] == ("–", "10.0 ms"), "raw is not decoded"
    page = render_html(outcome)
    assert all(row.figure in page and row.candidate in page for row in reported(outcome))
    assert "What tiers took and gave" in page
    assert "What drafting took and gave" not in page
