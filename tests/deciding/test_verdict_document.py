"""The verdict as a document: complete, one schema, unknown is null, read back with errors that say what is wrong."""

import json
import math

import msgspec
import pytest
import yaml

from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.experiment.rollback import mean_in_flight, rollback_rule
from netgain.deciding.verdict.deploy import deployable, netgain_file
from netgain.deciding.verdict.document import ArmFacts, DesignFacts, Load, Subject, VerdictDocument
from netgain.deciding.verdict.publish import About, publish
from netgain.deciding.verdict.quality import PerplexityDelta, Quality
from netgain.deciding.verdict.store import read_verdict
from netgain.documents import to_json
from netgain.errors import UsageError
from netgain.measuring.workload.slo import parse_slo

ABOUT = About(
    created="2026-01-01T00:00:00+00:00",
    netgain="0.1.0",
    technique=Subject(name="ngram", title="n-gram speculation", kind="token-identical", setting={"k": 4}),
    load=Load(workload="edit", concurrency=(1,), slo="ttft=500ms"),
    design=DesignFacts(starts=1),
    arms=(ArmFacts(name=BASELINE, engine="netgain"), ArmFacts(name=CANDIDATE, engine="netgain")),
)


def document_of(trial, **changes) -> VerdictDocument:
    terms = Terms(promises_identity=True, slo=parse_slo("ttft=500ms"))
    return publish(analyse(trial, terms), msgspec.structs.replace(ABOUT, **changes))


def test_what_is_written_is_read_back(make_trial, tmp_path):
    document = document_of(make_trial(speedup=1.3))
    path = tmp_path / "verdict.json"
    path.write_bytes(to_json(document))
    assert read_verdict(path) == read_verdict(tmp_path) == document
    assert (document.decision, document.design.unit, document.quality.state) == ("adopt", "group", "held")
    assert document.slo.candidate.share == 1.0
    assert {guard.state for guard in document.guards} == {"held"}


def test_what_is_unknown_is_null_and_never_zero(make_trial):
    found = json.loads(to_json(document_of(make_trial(speedup=1.3))))
    for path in (
        "handoffs",
        "resources",
        "sweep",
        "design.grown",
        "quality.perplexity",
        "quality.divergence",
        "load.rate_per_s",
    ):
        value = found
        for name in path.split("."):
            value = value[name]
        assert value is None, path
    assert found["arms"][0]["tokens_per_s"] is None


def test_every_kind_of_verdict_can_be_written(make_trial, tmp_path):
    trials = [
        [],
        make_trial(speedup=0.8),
        make_trial(groups=2),
        make_trial(candidate_fails=True),
        make_trial(baseline_fails=True, candidate_fails=True),
    ]
    for trial in trials:
        text = to_json(document_of(trial))
        assert b"Infinity" not in text
        assert b"NaN" not in text
        (tmp_path / "verdict.json").write_bytes(text)
        assert read_verdict(tmp_path).decision in ("reject", "inconclusive")


def test_gains_and_residual_add_up(make_trial):
    gain = document_of(make_trial(speedup=1.3)).gain
    assert gain.baseline_s - gain.candidate_s == pytest.approx(sum(gain.saved_s.values()) + gain.residual_s, abs=2e-9)


def test_a_lossy_technique_is_not_held_by_its_tokens_alone(make_trial):
    lossy = Subject(name="int4", title="4-bit weights", kind="lossy")
    trial = make_trial(speedup=1.3)
    assert document_of(trial, technique=lossy).quality.state is None
    measured = Quality(
        state="breached",
        perplexity=PerplexityDelta(baseline=9.0, candidate=12.0, ratio=4 / 3, limit=1.05, state="breached"),
    )
    assert document_of(trial, technique=lossy, quality=measured).quality == measured


def test_the_metric_of_prompts_that_were_not_paired_says_so(make_trial):
    apart = [msgspec.structs.replace(seen, start=int(seen.arm == CANDIDATE)) for seen in make_trial(speedup=1.3)]
    found = analyse(apart, Terms(promises_identity=False, paired=False))
    assert "not paired" in publish(found, ABOUT).metric
    assert "paired prompts" in document_of(make_trial(speedup=1.3)).metric


def test_caveats_tell_what_checks_found(make_trial):
    """Looping text and checks that could not be made do not void a run; they are said."""
    looping = make_trial(speedup=1.3, outputs=lambda arm, prompt: (7, 8) * 20)
    said = " ".join(caveat.says for caveat in document_of(looping).caveats)
    assert "repeats itself" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is no verdict"),
        ("[1]", "is no verdict"),
        ("{}", "no schema"),
        ('{"schema": "netgain.verdict", "version": 9}', "version 9"),
        ('{"schema": "netgain.verdict", "version": 1}', "missing required field"),
    ],
)
def test_a_file_that_is_no_verdict_is_refused_with_the_reason(tmp_path, text, told):
    path = tmp_path / "verdict.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        read_verdict(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nothing\.json cannot be read"):
        read_verdict(tmp_path / "nothing.json")


def test_the_threshold_for_going_back_lies_between_both_arms(make_trial):
    trial = make_trial(speedup=1.3, groups=8)
    for noise in (0.0, 0.05, 1.0):
        (pace,) = rollback_rule([trial], noise, ()).paces
        assert pace.candidate_s < pace.threshold_s <= pace.baseline_s
    assert rollback_rule([trial], 1.0, ()).paces[0].threshold_s == pytest.approx(
        math.sqrt(pace.candidate_s * pace.baseline_s)
    )


def test_where_tokens_gain_nothing_the_rule_allows_only_noise(make_trial):
    (pace,) = rollback_rule([make_trial(speedup=0.9)], 0.02, ()).paces
    assert pace.threshold_s == pytest.approx(pace.candidate_s * math.exp(0.02))


def test_guards_that_held_are_part_of_the_rule(make_trial):
    document = document_of(make_trial(speedup=1.3))
    (tail,) = [tail for tail in document.rollback.tails if tail.metric == "ttft"]
    assert (tail.share, tail.limit_s) == (0.95, 0.5)
    assert "p95 of ttft exceeds 500.0 ms" in document.rollback.says


def test_nothing_known_means_no_rule():
    assert rollback_rule([[]], None, ()) is None


def test_one_request_at_a_time_is_one_in_flight(make_trial):
    assert mean_in_flight(make_trial(), BASELINE) == pytest.approx(1.0)


def test_the_command_is_given_as_a_file_too():
    command = (
        "netgain",
        "serve",
        "default",
        "--speculation",
        "ngram",
        "--set",
        "engine.speculation.k=4",
        "--set",
        "port=0",
    )
    tree = yaml.safe_load(netgain_file(command))
    assert tree == {"engine": {"model": {"source": "default"}, "speculation": {"method": "ngram", "k": 4}}, "port": 0}
    assert netgain_file(("netgain", "serve", "default", "--unknown", "x")) is None
    assert netgain_file(("vllm", "serve", "m")) is None


def test_a_switch_that_never_started_the_engine_is_not_deployable():
    found = deployable("vllm", "candidate", ("vllm", "serve", "m", "--x"), ("--x",), checked_with=())
    assert (found.command, found.flags, found.config_file) == (None, None, None)
    assert "never used to start vllm" in found.note
