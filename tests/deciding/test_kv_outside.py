"""What is known of a vLLM's KV without being told by netgain: from its metrics, its configuration and the model's own file."""

import json

import pytest
from aiohttp import web

from netgain.deciding.decide.kv_outside import kv_dtype, kv_token_bytes, kv_tokens, kv_told
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.attached import AttachedServer

CONFIG = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
METRICS = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",cache_dtype="auto",num_gpu_blocks="364"} 1.0
"""


@pytest.mark.parametrize(
    ("labels", "configuration", "expected"),
    [
        ({"cache_dtype": "fp8"}, {}, "fp8"),
        ({"cache_dtype": "auto"}, {"model_config.dtype": "torch.bfloat16"}, "bfloat16"),
        ({"cache_dtype": "auto"}, {"dtype": "torch.float16", "kv_cache_dtype": "auto"}, "float16"),
        ({}, {"cache_config.cache_dtype": "auto", "model_config.dtype": "torch.float32"}, "float32"),
        ({"cache_dtype": "auto"}, {}, None),
        ({}, {"model_config.dtype": "torch.bfloat16"}, None),
    ],
)
def test_the_type_of_kv_is_what_vllm_says_and_the_models_where_that_is_auto(labels, configuration, expected):
    assert kv_dtype(labels, configuration) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"kv_cache_size_tokens": "46592", "num_gpu_blocks": "1", "block_size": "1"}, 46592),
        ({"num_gpu_blocks": "364", "block_size": "128"}, 46592),
        ({"num_gpu_blocks": "None", "block_size": "16"}, None),
        ({}, None),
    ],
)
def test_the_room_is_told_in_tokens_or_in_blocks(labels, expected):
    assert kv_tokens(labels) == expected


@pytest.mark.parametrize(
    ("change", "dtype", "expected"),
    [
        ({}, "bfloat16", 2 * 30 * 3 * 64 * 2),
        ({"head_dim": 128}, "float32", 2 * 30 * 3 * 128 * 4),
        ({"num_key_value_heads": None}, "bfloat16", 2 * 30 * 9 * 64 * 2),
        ({"layer_types": ["full_attention"] * 30}, "bfloat16", 2 * 30 * 3 * 64 * 2),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "bfloat16", None),
        ({"sliding_window": 4096}, "bfloat16", None),
        ({"sliding_window": 4096, "use_sliding_window": False}, "bfloat16", 2 * 30 * 3 * 64 * 2),
        ({"kv_lora_rank": 512}, "bfloat16", None),
        ({"num_hidden_layers": "many"}, "bfloat16", None),
        ({}, "fp8", None),
        ({}, None, None),
    ],
)
def test_what_a_token_takes_is_known_of_models_whose_layers_are_alike(tmp_path, change, dtype, expected):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert kv_token_bytes(str(tmp_path), dtype) == expected


def test_of_a_model_that_is_no_folder_or_has_no_readable_file_it_is_not_known(tmp_path):
    assert kv_token_bytes("org/model", "bfloat16") is None
    (tmp_path / "config.json").write_text("[1]")
    assert kv_token_bytes(str(tmp_path), "bfloat16") is None


@pytest.mark.parametrize(
    ("engine", "technique", "expected"),
    [
        ("vllm", "kv-int8", {"kv_dtype": "bfloat16"}),
        ("vllm", "kv-tiers", {"kv_dtype": "bfloat16", "kv_tokens": "46592", "kv_token_bytes": "23040"}),
        ("sglang", "kv-tiers", {}),
    ],
)
async def test_a_running_vllm_is_asked_and_sizes_only_for_a_technique_that_was_named(
    tmp_path, engine, technique, expected
):
    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def server_info(_: web.Request) -> web.Response:
        return web.json_response({"vllm_config": {"model_config": {"dtype": "torch.bfloat16"}}})

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/server_info", server_info)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    arm = AttachedServer("baseline", f"http://127.0.0.1:{runner.addresses[0][1]}", engine=engine, may_reset=False)
    settings = Settings(output=tmp_path / "out", engine=engine, model=str(tmp_path), technique=technique)
    assert await kv_told(settings, arm) == expected
    await runner.cleanup()
    assert await kv_told(settings, arm) == {}
