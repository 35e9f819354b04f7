"""What drafting takes: memory, the requests that no longer fit, and drafts for nothing; unknown where a server does not tell."""

import msgspec
import pytest
from aiohttp import web

from netgain.deciding.decide.drafts import DRAFTING, arm_memory, mean_tokens, wasted_per_token
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.deciding.report.draft_account import ArmMemory, DraftAccount
from netgain.deciding.report.html import render_html
from netgain.deciding.report.must_report import ROWS, reported
from netgain.deciding.report.outcome import Outcome, drafting
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.ledger.records import DraftCounts
from netgain.measuring.observe.names import Figure
from tests.deciding.test_report import outcome_of, trial_of

PLAIN = ArmMemory(kv_tokens=10_000, kv_token_bytes=20_000, draft_weight_bytes=0, draft_kv_token_bytes=0)
WITH_DRAFT = ArmMemory(
    kv_tokens=10_000, kv_token_bytes=25_000, draft_weight_bytes=50_000_000, draft_kv_token_bytes=5_000
)


@pytest.fixture(scope="module")
def tried(make_record) -> Outcome:
    return outcome_of(trial_of(make_record, groups=1))


@pytest.mark.parametrize("name", DRAFTING)
def test_all_that_a_technique_with_drafts_must_report_has_figures(name):
    assert set(CATALOGUE[name].must_report) <= set(ROWS)


def test_weights_and_kv_of_a_draft_cost_requests_that_the_same_memory_would_hold():
    account = DraftAccount(baseline=PLAIN, candidate=WITH_DRAFT, request_tokens=500.0)
    assert account.same_memory_tokens == (10_000 * 20_000 - 50_000_000) // 25_000 == 6_000
    assert account.fewer(account.same_memory_tokens) == 20.0 - 12.0
    assert account.fewer(WITH_DRAFT.kv_tokens) == 0.0, "as they ran, both have room for as many"


def test_suffix_indexes_take_room_as_well():
    taken = msgspec.structs.replace(PLAIN, suffix_index_bytes=20_000_000)
    account = DraftAccount(baseline=PLAIN, candidate=taken, request_tokens=100.0)
    assert account.same_memory_tokens == 9_000
    assert account.fewer(9_000) == 10.0


def test_a_draft_larger_than_the_memory_leaves_no_room_and_not_less_than_none():
    huge = msgspec.structs.replace(WITH_DRAFT, draft_weight_bytes=10**12)
    assert DraftAccount(baseline=PLAIN, candidate=huge).same_memory_tokens == 0


def test_what_is_not_told_makes_no_figure():
    account = DraftAccount(baseline=PLAIN, candidate=ArmMemory(), request_tokens=500.0)
    assert account.same_memory_tokens is None
    assert account.fewer(None) is None
    assert DraftAccount(baseline=PLAIN, candidate=WITH_DRAFT).requests(10_000) is None, "the length is not known"


def test_wasted_drafts_are_counted_per_token_of_the_answers(make_record):
    record = make_record("p", start_s=0.0, tokens=21, token_s=0.01, output=tuple(range(21)))
    counts = DraftCounts()
    for accepted in (0, 4, 1):
        counts.add(4, accepted)
    server = msgspec.structs.replace(record.server, drafts=counts, output_tokens=20)
    found = drafting([msgspec.structs.replace(record, server=server)])
    assert found is not None
    assert found.wasted_per_token == (12 - 5) / 20
    named = {
        name: Figure(role="counter", unit="tokens", name=name, tried=(name,), gained=gained)
        for name, gained in (("drafted_tokens", 12.0), ("accepted_tokens", 5.0), ("output_tokens", 20.0))
    }
    assert wasted_per_token(named) == (12 - 5) / 20
    assert (
        wasted_per_token({**named, "drafted_tokens": msgspec.structs.replace(named["output_tokens"], gained=None)})
        is None
    )
    assert wasted_per_token({}) is None
    assert mean_tokens([]) is None


def test_the_report_has_every_figure_of_both_arms(tried):
    account = DraftAccount(
        baseline=PLAIN,
        candidate=msgspec.structs.replace(WITH_DRAFT, suffix_index_bytes=3 << 20),
        request_tokens=500.0,
        wasted_per_token=0.25,
        origin="its manifest: greedy, 800 held-out places of m",
    )
    asked = tuple(dict.fromkeys(one for name in DRAFTING for one in CATALOGUE[name].must_report))
    outcome = msgspec.structs.replace(tried, must_report=asked, draft_account=account)
    rows = {row.figure: row[1:] for row in reported(outcome)}
    assert len(rows) == len(reported(outcome)), "a figure that two ask for is told once"
    assert rows["memory of the draft's weights"] == ("0 MiB", "48 MiB")
    assert rows["bytes of a token in the KV cache"] == ("20,000", "25,000")
    assert rows["KV tokens that fit, as both ran"] == ("10,000", "10,000")
    assert rows["KV tokens that fit in the memory of the baseline's KV"] == ("10,000", "5,874")
    assert rows["requests of mean length that fit there"] == ("20.0", "11.7 (8.3 fewer)")
    assert rows["memory of the suffix indexes at the end"][1] == "3 MiB"
    assert rows["drafted tokens that did not stand, per token of the answers"][1] == "0.25"
    assert rows["what the draft was trained on, and for which target"][1].startswith("its manifest")
    assert rows["draft time per request, on the mean"][0] == "0 ms"
    assert rows["draft time per request, on the mean"][1] not in ("0 ms", "unknown")
    assert not [figure for figure, told in rows.items() if "unknown" in "".join(told)]
    page = render_html(outcome)
    assert all(row.figure.replace("'", "&#39;") in page and row.candidate in page for row in reported(outcome))
    assert page.index("What drafting took and gave") < page.index("Guards and validity")


def test_what_no_server_told_is_unknown_in_the_report(tried):
    outcome = msgspec.structs.replace(
        tried,
        must_report=(*CATALOGUE["suffix"].must_report, *CATALOGUE["heads"].must_report),
        drafting=None,
        scores=(),
    )
    rows = {row.figure: row[1:] for row in reported(outcome)}
    for figure in ("memory of the draft's weights", "KV tokens that fit, as both ran"):
        assert rows[figure] == ("unknown", "unknown")
    for figure in (
        "tokens committed per step after the first",
        "drafted tokens that did not stand, per token of the answers",
        "requests of mean length that fit there",
        "memory of the suffix indexes at the end",
        "steps that found a draft, in their own text or in earlier answers",
        "accepted, of the drafts that reached a position",
        "what the draft was trained on, and for which target",
    ):
        assert rows[figure][1] == "unknown", figure


def test_a_technique_without_drafts_owes_none_of_this(tried):
    outcome = msgspec.structs.replace(
        tried, must_report=CATALOGUE[next(iter(CATALOGUE.keys() - set(DRAFTING)))].must_report
    )
    assert "What drafting took and gave" not in render_html(outcome)


async def served(card: dict[str, object], metrics: str) -> tuple[web.AppRunner, str]:
    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m", "netgain": card}]})

    async def exposition(_: web.Request) -> web.Response:
        return web.Response(text=metrics)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", exposition)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_memory_is_read_from_what_a_server_tells_and_else_unknown():
    card = {
        "kv_tokens": 10_000,
        "kv_token_bytes": 25_000,
        "draft_weight_bytes": 50_000_000,
        "draft_kv_token_bytes": 5_000,
    }
    gauge = '# TYPE netgain_suffix_index_bytes gauge\nnetgain_suffix_index_bytes{replica="0"} 4096.0\n'
    runner, url = await served(card, gauge)
    assert await arm_memory(AttachedServer("baseline", url, "netgain")) == msgspec.structs.replace(
        WITH_DRAFT, suffix_index_bytes=4096
    )
    await runner.cleanup()
    assert await arm_memory(AttachedServer("baseline", url, "netgain")) == ArmMemory(), (
        "a server that is gone tells nothing"
    )
    runner, url = await served({}, "vllm:num_requests_running 0\n")
    assert await arm_memory(AttachedServer("baseline", url, "netgain")) == ArmMemory()
    await runner.cleanup()
