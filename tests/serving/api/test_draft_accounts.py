"""What speculation did is told in four places (the answer's usage, its record, /metrics, decide's report): the same numbers.
Whoever drafts, a stop string inside accepted drafts ends the text there."""

import msgspec
import pytest

from netgain.deciding.report.outcome import drafting
from netgain.ledger.records import DraftCounts, RequestRecord
from netgain.measuring.client.record import ClientRecord
from tests.serving.chain_drafts import chain_head, chain_with_mtp
from tests.serving.conftest import CHAINS, IM_END
from tests.waiting import wait_for

# Prompts in the chain model's words (tests/serving/conftest.py): what they copy from is right, wrong, or ends the text.
WRONG = ("x", "y", "z", "w", "v", "x", "y")
REQUESTS = (
    (("la ", *WRONG, "l"), {"max_tokens": 30}),
    (("la ", "lo ", *WRONG, "l"), {"max_tokens": 23}),
    (("n", "one gr", "een l", "eft over", None, "n"), {"max_tokens": 20}),
    (("la ", *WRONG, "lo ", *WRONG, "l"), {"max_tokens": 31, "temperature": 2.0, "seed": 3}),
    (("la ", "lo ", "l"), {"max_tokens": 12, "netgain": {"max_drafts": 1}}),
    (("la ", "lo ", "l"), {"max_tokens": 12, "netgain": {"speculate": False}}),
)


@pytest.fixture(scope="module")
def speculating(start_server, server_options):
    settings = ("engine.speculation.lookup_min=1", "engine.speculation.k=5")
    options = [*server_options, "--speculation", "ngram", *(part for one in settings for part in ("--set", one))]
    with start_server(*options) as server:
        yield server


def samples(server, name: str) -> dict[tuple[str, ...], float]:
    """By label values, in the order of the labels' names; those of 0 left out."""
    found = {}
    for line in server.send("/metrics").body.decode().splitlines():
        head, _, value = line.rpartition(" ")
        metric, _, labels = head.partition("{")
        if metric == name and float(value):
            pairs = sorted(part.split("=") for part in labels.rstrip("}").split(","))
            found[tuple(value.strip('"') for _, value in pairs)] = float(value)
    return found


def ask(server, model, words, fields, stream: bool):
    """(usage, record) of one answer."""
    ids = [IM_END if word is None else model.spelled.get(word, model.spelled.get(word.encode())) for word in words]
    fields = {"prompt": ids, "temperature": 0, **fields, "netgain": {"record": True, **fields.get("netgain", {})}}
    if not stream:
        answer = server.post("/v1/completions", **fields).json
        return answer["usage"], answer["netgain"]
    chunks = server.post("/v1/completions", stream=True, stream_options={"include_usage": True}, **fields).chunks
    return chunks[-1]["usage"], chunks[-1]["netgain"]


def test_usage_records_metrics_and_report_tell_the_same_numbers(speculating, chain_model):
    told = DraftCounts()
    records = []
    for number, (words, fields) in enumerate(REQUESTS):
        usage, raw = ask(speculating, chain_model, words, fields, stream=number % 2 == 1)
        record = msgspec.convert(raw, RequestRecord, str_keys=True)
        records.append(record)
        details = usage.get("draft_tokens_details")
        if details is None:
            assert not record.drafts.decided, "the request speculated, and its usage does not say so"
            continue
        counts = record.drafts
        assert details["steps"] == counts.steps
        assert (details["drafted"], details["accepted"]) == (counts.drafted, counts.accepted)
        assert {int(length): steps for length, steps in details["by_length"].items()} == counts.by_length
        assert usage["completion_tokens"] == record.output_tokens
        told.merge(counts)
    assert not records[-1].drafts.decided
    assert len(told.by_length) > 1, "only one length was drafted: the denominators are not put to the test"
    assert 0 < sum(told.accepted) < sum(told.drafted)
    assert told.ended > 0, "no accepted drafts ended a text"

    drafted, accepted = (
        samples(speculating, "netgain_drafted_at_total"),
        samples(speculating, "netgain_accepted_at_total"),
    )
    assert [drafted.get((str(place + 1),), 0) for place in range(5)] == told.drafted
    assert [accepted.get((str(place + 1),), 0) for place in range(5)] == told.accepted
    by_length = samples(speculating, "netgain_verify_steps_total")
    assert by_length == {
        (str(kept), str(length)): steps
        for length, histogram in told.by_length.items()
        for kept, steps in enumerate(histogram)
        if steps
    }
    # the engine's own counters come with its next heartbeat
    wait_for(lambda: speculating.metric("netgain_draft_steps_total") >= told.steps)
    assert speculating.metric("netgain_draft_steps_total") == told.steps
    assert speculating.metric("netgain_drafted_tokens_total") == sum(told.drafted)
    assert speculating.metric("netgain_accepted_tokens_total") == sum(told.accepted)
    assert speculating.metric("netgain_draft_committed_tokens_total") == told.committed

    shown = drafting(
        ClientRecord(item_id=str(n), category="c", scheduled_s=0.0, sent_s=0.0, finished_s=1.0, server=record)
        for n, record in enumerate(records)
    )
    for name in ("steps", "drafted", "accepted", "by_length", "ended"):
        assert getattr(shown.counts, name) == getattr(told, name)
    later = sum(record.output_tokens - 1 for record in records)
    assert shown.committed_per_step == later / (told.steps + later - told.committed)


def test_usage_of_a_server_without_speculation_says_nothing_of_drafts(server):
    answer = server.ask(False, "a", netgain={"record": True}).json
    assert "draft_tokens_details" not in answer["usage"]
    assert answer["netgain"]["drafts"]["steps"] == 0


@pytest.fixture(scope="module", params=["ngram", "suffix", "draft model", "feature head", "Medusa heads", "mtp"])
def drafting_as(request, start_server, server_options, chain_model, tmp_path_factory):
    """(who drafts, a server whose drafts are what the model says)."""
    who, folder = request.param, tmp_path_factory.mktemp("draft") / "draft"
    model, *options = server_options
    assert model == str(chain_model.folder)
    settings = ["engine.speculation.k=3", "engine.speculation.lookup_min=1", "engine.speculation.draft_dtype=bf16"]
    method = {"draft model": "draft", "feature head": "draft", "Medusa heads": "draft"}.get(who, who)
    if who == "draft model":
        settings.append(f"engine.speculation.draft={chain_model.folder}")
    elif who in ("feature head", "Medusa heads"):
        kind = "feature" if who == "feature head" else "medusa"
        settings.append(f"engine.speculation.draft={chain_head(folder, chain_model, kind)}")
    elif who == "mtp":
        model = str(chain_with_mtp(folder, chain_model))
    options = [*options, "--speculation", method, *(part for one in settings for part in ("--set", one))]
    with start_server(model, *options) as server:
        yield who, server


@pytest.mark.parametrize("start", list("abcde"))
@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_inside_accepted_drafts_ends_the_text_there(drafting_as, server, chain_model, start, stream):
    """The whole answer stands in the prompt, so that it is drafted and accepted beyond the stop; "een la" is cut at another
    place in every chain."""
    who, speculating = drafting_as
    words = (start, *CHAINS[start], start)
    fields = {"max_tokens": 40, "stop": "een la", "temperature": 0}
    ids = [
        IM_END if word is None else chain_model.spelled.get(word, chain_model.spelled.get(word.encode()))
        for word in words
    ]

    def answer(of) -> tuple[str, str, int, list[int]]:
        """Text, reason, usage, and how many drafts stood, by position."""
        asked = {"prompt": ids, **fields, "netgain": {"record": True}}
        if not stream:
            whole = of.post("/v1/completions", **asked).json
            choice = whole["choices"][0]
            accepted = whole["netgain"]["drafts"]["accepted"]
            return choice["text"], choice["finish_reason"], whole["usage"]["completion_tokens"], accepted
        options = {"include_usage": True}
        chunks = of.post("/v1/completions", stream=True, stream_options=options, **asked).chunks
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        ended = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        last = chunks[-1]
        text = "".join(choice["text"] for choice in choices)
        return text, ended[0], last["usage"]["completion_tokens"], last["netgain"]["drafts"]["accepted"]

    *told, accepted = answer(speculating)
    assert sum(accepted) > 0, f"no draft of {who} stood: the stop was not inside one"
    *plain, none = answer(server)
    assert told == plain == ["one gr", "stop", 2]
    assert not none


def test_memory_that_drafting_takes_is_in_the_metrics(drafting_as):
    who, speculating = drafting_as
    speculating.ask(False, "a")
    grown = {"ngram": "netgain_steps_total", "suffix": "netgain_suffix_index_bytes"}.get(
        who, "netgain_draft_weight_bytes"
    )
    wait_for(lambda: samples(speculating, grown))  # until the next heartbeat

    def told(name: str) -> float:
        return sum(samples(speculating, name).values())

    assert (told("netgain_suffix_index_bytes") > 0) == (who == "suffix")
    info = speculating.send("/v1/models").json["data"][0]["netgain"]
    assert told("netgain_draft_weight_bytes") == info["draft_weight_bytes"]
    assert told("netgain_draft_kv_token_bytes") == info["draft_kv_token_bytes"]
    assert told("netgain_draft_kv_bytes") == info["draft_kv_token_bytes"] * info["kv_tokens"]
    assert (info["draft_kv_token_bytes"] == 0) == (who in ("ngram", "suffix"))
