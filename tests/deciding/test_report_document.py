"""A decision's verdict says of arms and quality what was found: which engine in which version, what the technique promises, and
what a lossy one was measured to lose."""

import msgspec
import pytest

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.report.document import document_of
from netgain.deciding.report.write import write_report
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.verdict.quality import Divergence, PerplexityDelta, Quality, TaskScore
from netgain.deciding.verdict.store import read_verdict
from tests.deciding.test_report import outcome_of, trial_of

LOSSY = Quality(
    state="not shown",
    says="not enough evidence of quality",
    perplexity=PerplexityDelta(baseline=9.0, candidate=9.05, ratio=1.006, low=1.001, high=1.012, limit=1.01),
    divergence=Divergence(mean=0.003, low=0.002, high=0.004, p99=0.02, limit=0.02, state="held"),
    tasks=(TaskScore(name="set", baseline=0.9, candidate=0.85, difference=-0.05, low=-0.1, high=0.0, limit=-0.01),),
)


@pytest.fixture
def outcome(make_record):
    return outcome_of(trial_of(make_record))


@pytest.mark.parametrize(
    ("engine", "version"), [("netgain", "0.1.0"), ("vllm", "0.32.0"), ("llama.cpp", "b6000-0c1e570"), ("sglang", None)]
)
def test_every_arm_has_the_engine_and_its_version_not_netgains(outcome, engine, version):
    document = document_of(msgspec.structs.replace(outcome, engine=engine, engine_version=version))
    assert [(arm.name, arm.engine, arm.version) for arm in document.arms] == [
        (BASELINE, engine, version),
        (CANDIDATE, engine, version),
    ]
    assert document.netgain == "0.1.0"


def test_an_arm_has_its_command_model_and_counts_and_settings_are_of_who_was_asked(outcome):
    arms = {arm.name: arm for arm in document_of(outcome).arms}
    for told in outcome.arms:
        arm = arms[told.name]
        assert (arm.command, arm.requests, arm.failed) == (told.command, told.requests, told.failed)
        assert (arm.tokens_per_s, arm.resident_bytes) == (told.tokens_per_s, told.resident_bytes)
        assert (arm.model, arm.url) == ("default", None)
    assert arms[BASELINE].settings == outcome.server
    assert arms[CANDIDATE].settings == {}, "the candidate has other settings than the baseline, which alone told them"


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_the_kind_is_what_the_technique_promises(outcome, name):
    document = document_of(msgspec.structs.replace(outcome, chosen=name, title=CATALOGUE[name].title))
    assert (document.technique.name, document.technique.kind) == (name, CATALOGUE[name].kind)
    assert document.technique.title == CATALOGUE[name].title


def test_tokens_alone_judge_an_identical_technique_and_no_lossy_one(outcome):
    assert document_of(outcome).quality.state == "held"
    unmeasured = document_of(msgspec.structs.replace(outcome, chosen="kv-int8"))
    assert (unmeasured.technique.kind, unmeasured.quality.state) == ("lossy", None)
    assert unmeasured.quality.perplexity is None


def test_what_a_lossy_technique_was_measured_to_lose_reaches_the_file(outcome, tmp_path):
    write_report(msgspec.structs.replace(outcome, chosen="kv-int8", quality=LOSSY), tmp_path)
    found = read_verdict(tmp_path)
    assert found.quality == LOSSY
    assert found.technique.kind == "lossy"


def test_nothing_tried_is_no_verdict(outcome, tmp_path):
    stopped = msgspec.structs.replace(outcome, chosen=None, analysis=None, arms=(), blocks=(), stopped="nothing to try")
    assert document_of(stopped) is None
