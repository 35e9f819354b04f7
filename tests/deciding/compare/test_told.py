"""What a started vLLM's configuration tells, on its development route and in its log. Fields as vllm/config has them (0.32)."""

from netgain.deciding.compare.told import configured_traits
from netgain.deciding.experiment.arms.effective import flatten, from_log

TOLD = {
    "model_config": {"dtype": "torch.bfloat16", "quantization": None, "max_model_len": 2048},
    "cache_config": {"cache_dtype": "auto"},
    "scheduler_config": {"max_num_seqs": 64, "max_num_batched_tokens": 2048},
    "parallel_config": {"world_size": 2, "data_parallel_size": 2},
    "device_config": {"device_type": "cpu"},
}


def values(configuration, engine="vllm"):
    return {name: trait.value for name, trait in configured_traits(engine, configuration).items()}


def test_a_configuration_tells_types_devices_and_limits():
    assert values(flatten(TOLD)) == {
        "dtype": "bf16",
        "kv_dtype": "bf16",
        "device": "cpu",
        "devices": 4,
        "max_running": 64,
        "max_batch_tokens": 2048,
    }


def test_quantised_weights_are_not_taken_for_the_type_that_they_are_multiplied_in():
    awq = {
        **TOLD,
        "model_config": {"dtype": "torch.float16", "quantization": "awq"},
        "cache_config": {"cache_dtype": "fp8"},
    }
    found = values(flatten(awq))
    assert (found["dtype"], found["kv_dtype"]) == ("awq+f16", "fp8")


def test_the_log_tells_less_and_nothing_is_made_up():
    line = (
        "Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16, max_seq_len=2048, "
        "tensor_parallel_size=1, quantization=None, kv_cache_dtype=auto, device_config=cpu"
    )
    assert values(from_log(line)) == {"dtype": "bf16", "kv_dtype": "bf16", "device": "cpu"}
    assert values({}) == {}
    assert values(flatten(TOLD), engine="sglang") == {}
