"""What differs besides the technique is said. vLLM's log lines are as 0.32.0 writes them; SGLang's fields are named as in
sgl-project/sglang at d315eb725044 (python/sglang/srt/server_args.py), which was read, not run."""

import pytest

from netgain.deciding.experiment.arms.confounders import ArmSetup, confounders, differences
from netgain.deciding.experiment.arms.effective import flatten, from_log

FELL = (
    "WARNING 11-30 vllm.py:732] Model Runner V2 does not yet support ngram speculative decoding; using the V1 model runner "
    "instead."
)
NGRAM = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')


def setup(name, flags=(), configuration=None, **more):
    return ArmSetup(name=name, flags=flags, configuration={} if configuration is None else configuration, **more)


def test_a_runner_that_fell_back_in_one_arm_only_is_said():
    """Methods that vLLM's V2 runner lacks fall back to V1 with a warning in the log, so an A/B compares runners."""
    (said,) = confounders("vllm", setup("baseline"), setup("candidate", NGRAM, log=FELL))
    assert "V1 model runner in the candidate only" in said
    assert "VLLM_USE_V2_MODEL_RUNNER=0" in said


def test_confounders_are_the_same_whichever_arm_speculates():
    """ "new against old" is often asked the other way round."""
    sglang = ("--speculative-algorithm", "NGRAM")
    for engine, flags in (("vllm", NGRAM), ("sglang", sglang)):
        assert confounders(engine, setup("baseline", flags), setup("candidate")) != ()
        assert confounders(engine, setup("baseline", flags), setup("candidate", flags)) == ()


def test_the_same_runner_in_both_arms_is_no_confounder():
    both = "Model Runner V2 requires Triton; using the V1 model runner instead."
    assert confounders("vllm", setup("baseline", log=both), setup("candidate", NGRAM, log=both)) == ()


def test_asynchronous_scheduling_that_was_turned_off_in_one_arm_only_is_said():
    """vLLM 0.32.0 schedules ahead by default, but not with n-gram drafts."""
    both = "Model Runner V2 requires Triton; using the V1 model runner instead."
    off = (
        "WARNING 11-30 12:24:45 [vllm.py:1605] Async scheduling not supported with ngram-based speculative decoding and will be "
        "disabled."
    )
    logs = both, f"{both}\n{off}"
    (said,) = confounders("vllm", setup("baseline", log=logs[0]), setup("candidate", NGRAM, log=logs[1]))
    assert "asynchronous scheduling off in the candidate only" in said
    assert "--no-async-scheduling" in said
    assert confounders("vllm", setup("baseline", log=logs[1]), setup("candidate", NGRAM, log=logs[1])) == ()


def test_a_name_that_every_vllm_process_draws_anew_is_no_difference():
    drawn = {"environment.VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME": "vllm_mm_R-nhDcKc", "environment.VLLM_CPU_NUM": "1"}
    other = {"environment.VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME": "vllm_mm_6fmLg_kU", "environment.VLLM_CPU_NUM": "2"}
    assert differences(drawn, other) == [("environment.VLLM_CPU_NUM", "1", "2")]


@pytest.mark.parametrize("method", ["ngram", "draft_model", "medusa", "suffix"])
def test_where_no_log_tells_the_runner_it_is_asked_to_be_pinned(method):
    flags = ("--speculative-config", f'{{"method": "{method}"}}')
    (said,) = confounders("vllm", setup("baseline"), setup("candidate", flags))
    assert "neither log says which ran" in said
    pinned = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert (
        confounders("vllm", setup("baseline", environment=pinned), setup("candidate", flags, environment=pinned)) == ()
    )


def test_eagle_runs_on_either_runner_of_vllm():
    assert confounders("vllm", setup("baseline"), setup("candidate", ("--spec-method", "eagle3"))) == ()


def test_statistics_that_are_off_are_said():
    (said,) = confounders("vllm", setup("baseline", ("--disable-log-stats",)), setup("candidate"))
    assert "statistics are off" in said


def test_sglangs_limit_of_running_requests_is_said_unless_both_arms_set_it():
    flags = ("--speculative-algorithm", "NGRAM")
    (said,) = confounders("sglang", setup("baseline"), setup("candidate", flags))
    assert "48" in said
    assert "--max-running-requests" in said
    limit = ("--max-running-requests=64",)
    assert confounders("sglang", setup("baseline", limit), setup("candidate", (*flags, *limit))) == ()
    assert confounders("sglang", setup("baseline", limit), setup("candidate", flags)) != ()


def test_fields_that_differ_are_listed_with_both_values_and_the_techniques_own_are_not():
    baseline = {
        "max_running_requests": "null",
        "enable_mixed_chunk": "true",
        "port": "1",
        "speculative_algorithm": "null",
    }
    candidate = {
        "max_running_requests": "48",
        "enable_mixed_chunk": "false",
        "port": "2",
        "speculative_algorithm": "NGRAM",
    }
    assert differences(baseline, candidate) == [
        ("enable_mixed_chunk", "true", "false"),
        ("max_running_requests", "null", "48"),
    ]
    (said,) = confounders("llama.cpp", setup("baseline", (), baseline), setup("candidate", (), candidate))
    assert "max_running_requests (null in the baseline, 48 in the candidate)" in said


def test_a_techniques_own_fields_are_no_confounders():
    off, on = (
        {"kv_tiers": "[]", "kv_codecs_measured": "[]"},
        {"kv_tiers": '["dram:1GiB"]', "kv_codecs_measured": "[raw]"},
    )
    arms = setup("baseline", (), off), setup("candidate", (), on)
    assert confounders("netgain", *arms, technique="kv-tiers") == ()
    assert "kv_tiers" in confounders("netgain", *arms, technique="ngram")[0]


def test_an_engine_that_does_not_tell_its_configuration_is_not_taken_for_equal():
    arms = [ArmSetup(name=name, flags=(), configuration=None) for name in ("baseline", "candidate")]
    (said,) = confounders("llama.cpp", *arms)
    assert "could not be looked for" in said


def test_vllms_log_is_read_where_its_route_is_closed():
    log = (
        "(APIServer pid=1) INFO utils.py:233] non-default args: {'model_tag': 'm', 'max_num_seqs': 32}\n"
        "(EngineCore pid=2) INFO core.py:134] Initializing a V1 LLM engine (v0.32.0) with config: model='m', "
        "speculative_config=None, dtype=torch.bfloat16, max_seq_len=8192, enable_prefix_caching=True\n"
    )
    found = from_log(log)
    assert found["max_num_seqs"] == "32"
    assert found["dtype"] == "torch.bfloat16"
    assert found["enable_prefix_caching"] == "True"
    assert from_log("nothing") is None


def test_nested_fields_are_named_by_their_path():
    assert flatten({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": "1", "a.c": "[1,2]", "d": "null"}
