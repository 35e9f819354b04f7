"""Comparisons of two servers that run: planted differences, the rule of equal resources, and everything that can be wrong."""

import asyncio
import json
from types import SimpleNamespace

import msgspec
import pytest

from netgain.cli.main import run
from netgain.deciding.compare.document import document_of
from netgain.deciding.compare.meeting import know
from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import SideAsked
from netgain.deciding.compare.traits import Trait
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.experiment.arms.described import Described
from netgain.deciding.experiment.arms.starting import Starting
from netgain.errors import Unavailable, UsageError
from tests.deciding.compare.paced_server import paced_server

NETGAIN = {
    "weights": "ab" * 32,
    "dtype": "bf16",
    "kv_dtype": "bfloat16",
    "device": "cpu",
    "devices": 1,
    "threads": 2,
    "memory_bytes": 2**30,
    "max_running": 32,
    "max_batch_tokens": 512,
}


def declaring(url: str, *declared: str) -> SideAsked:
    return SideAsked(sources=(url,), declared=declared)


def test_five_percent_longer_tokens_are_found(settings):
    with paced_server(token_s=0.03, most=6) as baseline, paced_server(token_s=0.0315, most=6) as candidate:
        outcome = compare(settings(baseline, candidate), Silence())
    verdict = outcome.analysis.verdict
    assert (verdict.decision, verdict.finding) == ("reject", "slower")
    assert verdict.primary.ratio == pytest.approx(1 / 1.05, abs=0.02)
    assert "within these starts" in verdict.scope
    checks = {check.name: check for check in verdict.checks}
    assert checks["restarts"].ok
    assert checks["other users of the servers"].ok
    assert checks["idle arm"].ok is not None
    assert verdict.identity.compared == 24
    assert verdict.identity.holds
    assert outcome.sides["baseline"].engine == "vllm"
    assert outcome.sides["baseline"].figures["output_tokens"].gained > 0
    assert any("not known to be equal" in caveat and "dtype" in caveat for caveat in outcome.caveats)
    gain = document_of(outcome).gain
    assert gain.by == "metrics", "these answers bring no stages"
    assert gain.saved_s == {"decode": pytest.approx(-5 * 0.0015, abs=1e-6)}
    assert gain.baseline_s - gain.candidate_s == pytest.approx(sum(gain.saved_s.values()) + gain.residual_s, abs=1e-9)
    for arm in outcome.arms:
        assert 0.5 < arm.stage_share["decode"] < 1.0
        assert sum(arm.stage_share.values()) == pytest.approx(1.0)


def test_a_gain_is_not_adopted_before_devices_and_number_types_are_known(settings, tmp_path):
    """Two servers that tell only the model's name may be one device against two, or 16 bits against 8."""
    # a first token far sooner: what a busy machine adds to one must not come near the guard of TTFT
    with paced_server(token_s=0.006, first_s=0.03) as baseline, paced_server(token_s=0.003) as candidate:
        unknown = compare(settings(baseline, candidate), Silence()).analysis.verdict
        sides = [declaring(url, "devices=1,dtype=bf16") for url in (baseline, candidate)]
        known = compare(settings(*sides, output=tmp_path / "known"), Silence()).analysis.verdict
        accepted = ("dtype=one checkpoint", "devices=one each")
        third = settings(baseline, candidate, overrides=accepted, output=tmp_path / "third")
        overridden = compare(third, Silence()).analysis.verdict
    assert (unknown.decision, unknown.finding) == ("inconclusive", "faster")
    assert any("dtype and devices are not known of both sides" in why for why in unknown.reasons)
    assert any("--baseline-is dtype=...,devices=... --candidate-is" in why for why in unknown.reasons)
    assert (known.decision, overridden.decision) == ("adopt", "adopt")


@pytest.mark.parametrize(("flags", "devices"), [((), None), (("-tp", "2"), Trait(2, "declared"))])
async def test_devices_that_nobody_wrote_are_not_declared(settings, flags, devices):
    arm = Described(engine="vllm", model="m", starting=Starting(flags=flags))
    asked = SideAsked(sources=("vllm serve m",), arm=arm)
    with paced_server(token_s=0.003) as url:
        started = SimpleNamespace(url=url, headers={}, name="baseline", command=("vllm", "serve", "m"))
        known = await know(settings(url, url, control=True), "baseline", asked, started)  # type: ignore[arg-type]
    assert known.traits.get("devices") == devices


def test_two_equal_servers_are_not_told_apart(settings):
    """ohdearquant/lattice#1137: a control of the same source against itself showed +8.95 % with a narrow interval."""
    with paced_server(token_s=0.01) as baseline, paced_server(token_s=0.01) as candidate:
        asked = settings(baseline, candidate, control=True, minimum_effect=0.03)
        outcome = compare(asked, Silence())
    verdict = outcome.analysis.verdict
    assert verdict.decision == "inconclusive"
    assert verdict.finding in ("same", "unclear")
    assert not verdict.void
    assert outcome.analysis.control is not None
    assert {arm.name for arm in outcome.arms} == {"baseline", "candidate", "control"}


def test_one_server_against_itself_adopts_nothing(settings):
    with paced_server() as url:
        with pytest.raises(UsageError, match="same server"):
            settings(url, url.replace("127.0.0.1", "localhost"))
        outcome = compare(settings(url, url + "/v1", control=True), Silence())
    assert outcome.same_server
    assert outcome.analysis.verdict.decision != "adopt"


def test_another_number_type_is_refused_and_an_override_is_kept(settings):
    four_bit = json.dumps({**NETGAIN, "dtype": "q4_1", "memory_bytes": 2**29})
    with (
        paced_server(owner="netgain", card=json.dumps(NETGAIN)) as baseline,
        paced_server(owner="netgain", card=four_bit, token_s=0.003, says="other") as candidate,
    ):
        with pytest.raises(UsageError, match=r"dtype \(bf16 against q4_1\), memory \(1.00 GiB against 0.50 GiB\)"):
            compare(settings(baseline, candidate), Silence())
        with pytest.raises(UsageError, match="no field 'dtyp': did you mean 'dtype'"):
            compare(settings(baseline, candidate, overrides=("dtyp=x",)), Silence())
        with pytest.raises(UsageError, match="gives no reason"):
            compare(settings(baseline, candidate, overrides=("dtype",)), Silence())
        why = ("dtype=the 4-bit form was judged on our task set", "memory=follows from it")
        outcome = compare(settings(baseline, candidate, overrides=why), Silence())
    assert outcome.overrides["dtype"] == "the 4-bit form was judged on our task set"
    assert any("judged on our task set" in caveat for caveat in outcome.caveats)
    assert outcome.analysis.verdict.finding == "faster"
    assert outcome.analysis.verdict.decision == "inconclusive"
    assert any("answers differ" in reason for reason in outcome.analysis.verdict.reasons)


def test_more_devices_are_a_scaling_comparison_and_never_adopted(settings):
    with paced_server(token_s=0.015, first_s=0.015) as one, paced_server(token_s=0.01, first_s=0.01) as two:
        sides = declaring(one, "devices=1"), declaring(two, "devices=2")
        with pytest.raises(UsageError, match=r"devices \(1 against 2\).*--scaling"):
            compare(settings(*sides), Silence())
        with pytest.raises(UsageError, match="how many devices"):
            compare(settings(one, two, kind="scaling"), Silence())
        outcome = compare(settings(*sides, kind="scaling"), Silence())
    verdict = outcome.analysis.verdict
    assert verdict.decision == "inconclusive"
    assert outcome.scaling.factor == 2.0
    assert outcome.scaling.efficiency == pytest.approx(0.75, abs=0.06)
    assert outcome.scaling.efficiency_low < outcome.scaling.efficiency < outcome.scaling.efficiency_high
    assert outcome.scaling.per_unit["baseline"] > outcome.scaling.per_unit["candidate"]
    assert "of linear" in verdict.headline


def test_a_server_that_begins_again_in_the_middle_voids_the_run(settings):
    with paced_server(token_s=0.002) as baseline, paced_server(token_s=0.002, restarts_at=40) as candidate:
        verdict = compare(settings(baseline, candidate), Silence()).analysis.verdict
    assert verdict.void
    assert "began again in the middle" in verdict.reasons[0]


def test_others_on_a_server_void_the_run(settings):
    with paced_server(token_s=0.002) as baseline, paced_server(token_s=0.002, counts=1.5) as candidate:
        verdict = compare(settings(baseline, candidate), Silence()).analysis.verdict
    assert verdict.void
    assert "others used a server meanwhile: candidate produced 50% more" in verdict.reasons[0]


def test_where_a_cache_would_find_a_prompt_again_none_is_sent_twice(settings):
    """vllm-project/vllm#52884: a second run with the same seed found its prompts in the prefix cache, throughput +86 %."""
    with (
        paced_server(token_s=0.002, salts=0, remembers=1) as baseline,
        paced_server(token_s=0.002, remembers=1) as candidate,
    ):
        outcome = compare(settings(baseline, candidate), Silence())
    assert len(outcome.blocks) == 24
    assert outcome.arms[0].requests == outcome.arms[1].requests == 24
    assert any("each prompt was sent to each server once" in caveat for caveat in outcome.caveats)


def test_shorter_answers_are_no_gain_in_speed(settings):
    with paced_server(token_s=0.004, most=8) as baseline, paced_server(token_s=0.004, most=4) as candidate:
        sides = [declaring(url, "dtype=bf16,kv_dtype=bf16") for url in (baseline, candidate)]
        outcome = compare(settings(*sides), Silence())
    verdict = outcome.analysis.verdict
    assert verdict.finding == "faster"
    assert verdict.decision == "inconclusive"
    assert any("50% shorter" in reason for reason in verdict.reasons)


def test_other_tokens_reject_only_who_promised_the_same(settings):
    with paced_server(token_s=0.002) as baseline, paced_server(token_s=0.002, says="mot") as candidate:
        promised = compare(settings(baseline, candidate, promises_identity=True), Silence()).analysis.verdict
    assert promised.decision == "reject"
    assert "promises identical tokens" in promised.reasons[0]


def test_other_models_are_refused_unless_declared_the_same(settings):
    with paced_server(model="a") as baseline, paced_server(model="b", token_s=0.002) as candidate:
        with pytest.raises(UsageError, match=r"model \(a against b\).*--baseline-is model=NAME"):
            compare(settings(baseline, candidate), Silence())
        outcome = compare(settings(declaring(baseline, "model=x"), declaring(candidate, "model=x")), Silence())
    assert any("Declared by the user and not verified: model" in caveat for caveat in outcome.caveats)


def test_a_declaration_may_not_contradict_the_server(settings):
    with (
        paced_server(owner="netgain", card=json.dumps(NETGAIN)) as url,
        paced_server() as other,
        pytest.raises(UsageError, match=r"declares dtype=q4_1, but .* says bf16"),
    ):
        compare(settings(declaring(url, "dtype=q4_1"), other), Silence())


async def test_what_is_no_server_is_said(settings, free_port):
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>")
        await writer.drain()
        writer.close()

    with paced_server() as url:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await asyncio.to_thread(compare, settings(url, f"http://127.0.0.1:{free_port}"), Silence())
        server = await asyncio.start_server(page, "127.0.0.1", 0)
        async with server:
            website = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            with pytest.raises(Unavailable, match="is it OpenAI-compatible"):
                await asyncio.to_thread(compare, settings(url, website), Silence())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--baseline", "http://h:1"], "Missing option '--candidate'"),
        (["--baseline", "http://h:1", "--candidate", "http://h:1"], "are the same server"),
        (["--baseline", "http://h:1", "--candidate", "out.json"], "cannot be measured in turns"),
        (["--baseline", "http://h:1", "--candidate", "http://h:x"], "cannot be used"),
        (["--baseline", "http://h:1", "--baseline", "http://h:2", "--candidate", "http://h:3"], "name one"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--override", "speed=no"], "no field 'speed'"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--baseline-is", "dtype"], "write FIELD=VALUE"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--baseline-is", "x.toml"], "cannot read"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--slo", "fast"], "'fast' is not understood"),
        (
            ["--baseline", "http://h:1", "--candidate", "http://h:2", "--price", "cheap"],
            "price 'cheap' is not understood",
        ),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--concurrency", "0"], "concurrency is 0"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--rate", "0"], "request rate is 0"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--rate", "1", "--concurrency", "2"], "give one of"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--budget", "20"], "write device-hours such as 2h"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--starts", "3"], "--starts is for two arms"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--resume", "x"], "nothing to resume in x"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--tasks", "no.jsonl"], "no.jsonl cannot be read"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--scorer", "true"], "give them with --tasks"),
        (["--baseline", "a.json", "--candidate", "b.json", "--texts", "bundled"], "results are none"),
        (["--baseline", "a.json", "--candidate", "b.json", "--rate", "3", "--quick"], "leave out --rate, --quick"),
        (["--baseline", "a.json", "--candidate", "b.json", "--workload", "edit"], "leave out --workload"),
        (["--baseline", "a.json", "--candidate", "b.json", "--header", "key=x"], "leave out --header"),
        (["--baseline", "a.json", "--candidate", "vllm serve m"], "cannot be measured in turns"),
        (["--baseline", "http://h:1", "--candidate", "nginx -g x"], "begins with no server that is known"),
        (["--baseline", "http://h:1", "--candidate", "arm.yaml"], "the arm in arm.yaml cannot be read"),
        (["--baseline", "http://h:1", "--candidate", "vllm serve m --host h"], "names --host; leave it out"),
        (["--baseline", "http://h:1", "--candidate", "vllm serve m --port 0"], "must lie in [1, 65535]"),
        (["--baseline", "vllm serve m --port 9", "--candidate", "vllm serve m --port 9"], "both arms pin port 9"),
        (["--baseline", "vllm serve m", "--candidate", "vllm serve m", "--starts", "0"], "the starts are 0"),
        (["--baseline", "vllm serve m", "--candidate", "vllm serve m", "--resume", "no"], "nothing to resume in no"),
        (["--baseline", "vllm serve m", "--candidate", "vllm serve m", "--workload", "no.jsonl"], "no.jsonl"),
        (["--baseline", "http://h:1", "--candidate", "http://h:2", "--scaling", "--gate"], "rejects nothing"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["compare", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_document_and_the_gate_fails_on_a_regression(settings, tmp_path, capsys):
    with paced_server(token_s=0.002) as baseline, paced_server(token_s=0.004) as candidate:
        asked = settings(baseline, candidate)
        command = ["compare", "--baseline", baseline, "--candidate", candidate, "--workload", asked.workload, "--quick"]
        command += ["--output", str(tmp_path / "out"), "--json"]
        assert run([*command, "--gate"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "out/comparison.json").read_text())
    assert told["analysis"]["verdict"]["decision"] == "reject"
    assert len((tmp_path / "out/records.jsonl").read_text().splitlines()) == 96
    assert msgspec.json.encode(told)


@pytest.mark.slow
def test_requests_at_a_rate_come_alike_to_both(settings):
    with paced_server(token_s=0.002, most=3) as baseline, paced_server(token_s=0.004, most=3) as candidate:
        outcome = compare(settings(baseline, candidate, rate_per_s=50.0), Silence())
    assert outcome.analysis.verdict.finding == "slower"
    assert outcome.asked.concurrency is None
    load = document_of(outcome).load
    assert (load.rate_per_s, load.concurrency) == (50.0, ())
    assert all(arm.requests == 12 * 2 * 8 for arm in outcome.arms)
    assert any("50 requests per second" in line for line in outcome.cannot_show)
