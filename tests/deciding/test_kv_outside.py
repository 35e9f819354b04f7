"""What is known of the KV of other engines: from their metrics, configuration and flags, and the model's own file."""

import json
import struct

import msgspec
import pytest
from aiohttp import web

from netgain.deciding.decide.kv_outside import kv_dtype, kv_moved, kv_tokens, kv_told, llama_types, sglang_dtype
from netgain.deciding.decide.kv_sizes import gguf_token_bytes, kv_token_bytes
from netgain.deciding.decide.settings import Settings
from netgain.deciding.experiment.arms.attached import AttachedServer
from netgain.measuring.observe.exposition import read_exposition
from netgain.measuring.observe.scrape import Observed
from netgain.measuring.observe.window import observed

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
        ("sglang", "kv-tiers", {"kv_dtype": "bfloat16", "kv_tokens": "131072", "kv_token_bytes": "23040"}),
        ("sglang", "kv-compression-lossy", {"kv_dtype": "bfloat16"}),
        ("llama.cpp", "kv-tiers", {"kv_tokens": "8192"}),
        ("llama.cpp", None, {}),
    ],
)
async def test_a_running_engine_is_asked_and_sizes_only_for_a_technique_that_was_named(
    tmp_path, engine, technique, expected
):
    """vLLM's answers are a real server's; SGLang's are in the form of its source: srt/entrypoints/http_server.py (server_info)
    with srt/managers/scheduler.py (get_init_info), 0.5.23; llama.cpp's of tools/server/server-context.cpp (get_meta)."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    async def server_info(_: web.Request) -> web.Response:
        if engine == "sglang":
            args = {"dtype": "auto", "kv_cache_dtype": "auto", "max_total_num_tokens": 131072, "version": "0.5.23"}
            return web.json_response(args)
        return web.json_response({"vllm_config": {"model_config": {"dtype": "torch.bfloat16"}}})

    async def props(_: web.Request) -> web.Response:
        return web.json_response({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2})

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "bfloat16"}))
    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/server_info", server_info)
    app.router.add_get("/get_server_info", server_info)
    app.router.add_get("/props", props)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    arm = AttachedServer("baseline", f"http://127.0.0.1:{runner.addresses[0][1]}", engine=engine, may_reset=False)
    settings = Settings(output=tmp_path / "out", engine=engine, model=str(tmp_path), techniques=(technique,))
    assert await kv_told(settings, arm) == expected
    if technique == "kv-tiers":
        told = msgspec.structs.replace(settings, kv_token_bytes=512)
        assert (await kv_told(told, arm))["kv_token_bytes"] == "512"
    await runner.cleanup()
    assert "kv_tokens" not in await kv_told(settings, arm)


@pytest.mark.parametrize(
    ("configuration", "config", "expected"),
    [
        ({"kv_cache_dtype": "fp8_e5m2"}, {}, "fp8_e5m2"),
        ({"kv_cache_dtype": "auto", "dtype": "half"}, {}, "float16"),
        ({"kv_cache_dtype": "auto", "dtype": "auto"}, {"dtype": "bfloat16"}, "bfloat16"),
        ({"kv_cache_dtype": "auto", "dtype": "auto"}, {"torch_dtype": "float32"}, "float16"),
        ({"kv_cache_dtype": "auto"}, {}, None),
        ({}, {"torch_dtype": "bfloat16"}, None),
    ],
)
def test_sglangs_type_is_what_it_says_and_the_models_where_that_is_auto(tmp_path, configuration, config, expected):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert sglang_dtype(configuration, str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ((), {}, ("f16", "f16")),
        (("-ctk", "q8_0", "--cache-type-v=q4_0"), {}, ("q8_0", "q4_0")),
        (("-ctk", "q8_0", "-ctk", "f32"), {"LLAMA_ARG_CACHE_TYPE_V": "bf16"}, ("f32", "bf16")),
        (("env", "LLAMA_ARG_CACHE_TYPE_K=q5_1", "llama-server"), {}, ("q5_1", "f16")),
    ],
)
def test_the_types_of_llama_cpps_kv_are_those_of_its_flags_and_variables(given, environment, expected):
    assert llama_types(given, environment) == expected


def test_a_gguf_file_tells_what_a_token_takes_and_models_whose_layers_differ_do_not(tmp_path):
    def write(**change):
        fields = {
            "general.architecture": "llama",
            "llama.block_count": 30,
            "llama.embedding_length": 576,
            "llama.attention.head_count": 9,
            "llama.attention.head_count_kv": 3,
            **change,
        }
        path = tmp_path / "model.gguf"
        path.write_bytes(gguf(fields))
        return str(path)

    assert gguf_token_bytes(write(), "f16", "f16") == 2 * 30 * 3 * 64 * 2
    assert gguf_token_bytes(write(), "q8_0", "f16") == 30 * 3 * 64 * 2 + 30 * 3 * 64 * 34 // 32
    assert gguf_token_bytes(write(**{"llama.attention.key_length": 128}), "f16", "f16") == 30 * 3 * (128 + 64) * 2
    assert gguf_token_bytes(write(**{"llama.attention.sliding_window": 512}), "f16", "f16") is None
    assert gguf_token_bytes(write(**{"general.architecture": "gemma3"}), "f16", "f16") is None
    assert gguf_token_bytes(write(), "turbo3", "f16") is None
    assert gguf_token_bytes(str(tmp_path / "none.gguf"), "f16", "f16") is None


def gguf(fields):
    """A file of metadata alone, by the format's definition: magic, version 3, no tensors, then key, type and value."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    parts = [b"GGUF", struct.pack("<IQQ", 3, 0, len(fields))]
    for name, value in fields.items():
        typed = struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
        parts.append(text(name) + typed)
    return b"".join(parts)


def test_a_model_of_the_hugging_face_cache_is_found_by_its_id(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--model"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc/config.json").write_text(json.dumps(CONFIG))
    assert kv_token_bytes("org/model", "bfloat16") == 23040
    assert kv_token_bytes("org/other", "bfloat16") is None


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "# TYPE vllm:kv_offload_load_bytes_total counter\nvllm:kv_offload_load_bytes_total 1e6\n"
            "# TYPE vllm:kv_offload_load_time_total counter\nvllm:kv_offload_load_time_total 0.5\n",
            "# TYPE vllm:kv_offload_load_bytes_total counter\nvllm:kv_offload_load_bytes_total 5e6\n"
            "# TYPE vllm:kv_offload_load_time_total counter\nvllm:kv_offload_load_time_total 1.5\n",
            (4e6, 1.0),
        ),
        (
            "# TYPE sglang:load_back_bytes_total counter\nsglang:load_back_bytes_total 1e6\n"
            "# TYPE sglang:load_back_duration_seconds histogram\n"
            'sglang:load_back_duration_seconds_bucket{le="+Inf"} 1\n'
            "sglang:load_back_duration_seconds_sum 0.5\nsglang:load_back_duration_seconds_count 1\n",
            "# TYPE sglang:load_back_bytes_total counter\nsglang:load_back_bytes_total 3e6\n"
            "# TYPE sglang:load_back_duration_seconds histogram\n"
            'sglang:load_back_duration_seconds_bucket{le="+Inf"} 4\n'
            "sglang:load_back_duration_seconds_sum 2.0\nsglang:load_back_duration_seconds_count 4\n",
            (2e6, 1.5),
        ),
        ("", "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total 7\n", None),
    ],
)
def test_what_was_loaded_is_what_the_counters_gained(before, after, expected):
    """Names as in vLLM 0.33 (offloading/metrics.py) and SGLang 0.5.23 (metrics_collector.py)."""
    window = observed([read_exposition(before, 0.0), read_exposition(after, 1.0)])
    found = kv_moved(Observed(url="u", window=window))
    assert (None if found is None else (found.bytes, found.seconds)) == expected
    assert kv_moved(Observed(url="u", absent="gone")) is None
