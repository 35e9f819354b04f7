"""Arms as their users describe them: by the command line that starts them, or in a file."""

import shlex

import pytest

from netgain.deciding.experiment.arms.described import describe, described_by_command, describes_an_arm, launched
from netgain.deciding.experiment.arms.starting import Starting
from netgain.errors import UsageError


@pytest.mark.parametrize(
    ("source", "is_arm"),
    [
        ("http://127.0.0.1:8000", False),
        ("results/", False),
        ("bench.json", False),
        ("arm.yaml", True),
        ("arm.toml", True),
        ("netgain serve default", True),
        ("HTTP_PROXY=http://h:1 vllm serve org/model", True),
        ("netgain serve --config own.yaml", True),
        ("OMP_NUM_THREADS=1 vllm serve org/model --proxy http://h:1", True),
    ],
)
def test_an_arm_is_told_from_a_url_and_a_result(source, is_arm):
    assert describes_an_arm(source) is is_arm


def test_a_command_line_that_ends_with_a_file_is_no_file():
    assert describe("netgain serve --config own.yaml").starting.flags == ("--config", "own.yaml")


def test_a_result_whose_path_has_spaces_is_no_arm(tmp_path):
    path = tmp_path / "my results"
    path.mkdir()
    assert not describes_an_arm(str(path))


@pytest.mark.parametrize(
    ("text", "engine", "command", "environment"),
    [
        ("netgain serve default --set a.b=1", "netgain", "netgain serve default --set a.b=1", {}),
        ("netgain serve --speculation ngram", "netgain", "netgain serve default --speculation ngram", {}),
        ("A=1 B='x y' vllm serve o/m --flag 'a b'", "vllm", "vllm serve o/m --flag 'a b'", {"A": "1", "B": "x y"}),
        ("llama-server -np 2 -m m.gguf -c 512", "llama.cpp", "llama-server -m m.gguf -np 2 -c 512", {}),
        (
            "python3 -m sglang.launch_server --model-path=o/m --tp-size 2",
            "sglang",
            "python3 -m sglang.launch_server --model-path o/m --tp-size 2",
            {},
        ),
    ],
)
def test_a_command_line_is_the_arm_that_it_starts(tmp_path, text, engine, command, environment):
    found = described_by_command(text)
    assert found.engine == engine
    assert dict(found.starting.environment) == environment
    assert shlex.join(launched(found, "baseline", tmp_path).command) == command


def test_a_program_named_by_its_path_is_started_from_there():
    assert described_by_command("/opt/v/bin/vllm serve o/m").starting.command == "/opt/v/bin/vllm serve"
    assert described_by_command("/opt/s/python -m sglang.launch_server --model m").starting.command == (
        "/opt/s/python -m sglang.launch_server"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nginx -g x", "no server that is known"),
        ("vllm serve --flag", "names no model"),
        ("llama-server -c 1", "names no model"),
        ("vllm serve m --port", "pins the port ''"),
        ("vllm serve m --port=x", "pins the port 'x'; it must be a whole number"),
        ("vllm serve m --port 0", "is 0; it must lie in"),
        ("llama-server -m m --port 70000", "is 70000; it must lie in"),
        ("vllm serve m --port 1 --port 2", "--port twice"),
        ("netgain serve m --set port=9", "the flags name --set port=9"),
        ("netgain serve m --host=0.0.0.0", "leave it out"),
        ("/opt/n/bin/netgain serve m", "its interpreter"),
        ("vllm serve 'm", "as a shell would"),
        ("A=1 ", "no server that is known"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_refused(text, told):
    with pytest.raises(UsageError, match=told):
        described_by_command(text)


def test_a_file_says_how_an_engine_is_started(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "engine: vllm\nmodel: o/m\npython: /e/python\nflags: --max-num-seqs 8 --x 'a b'\n"
        "environment: {CUDA_VISIBLE_DEVICES: 0}\ndevices: 2\n"
    )
    (tmp_path / "a.toml").write_text(
        'engine = "vllm"\nmodel = "o/m"\npython = "/e/python"\nflags = ["--max-num-seqs", "8", "--x", "a b"]\ndevices = 2\n'
        '[environment]\nCUDA_VISIBLE_DEVICES = "0"\n'
    )
    found = describe(str(tmp_path / "a.yaml"))
    assert found == describe(str(tmp_path / "a.toml"))
    assert found.devices == 2
    assert found.starting == Starting(
        python="/e/python",
        flags=("--max-num-seqs", "8", "--x", "a b"),
        environment={"CUDA_VISIBLE_DEVICES": "0"},
        devices=2,
    )


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ("vllm serve o/m", None),
        ("vllm serve o/m -tp 2 --pipeline-parallel-size=2", 4),
        ("vllm serve o/m --data_parallel_size 3", 3),
        ("vllm serve o/m -tp {ranks}", None),
        ("CUDA_VISIBLE_DEVICES=3 vllm serve o/m", 1),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve o/m", None),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve o/m -tp 2", 2),
        ("python -m sglang.launch_server --model-path o/m --tp-size 4 --dp-size 4 --enable-dp-attention", 4),
        ("python -m sglang.launch_server --model-path o/m --tp 2 --dp 2", 4),
        ("llama-server -m m.gguf", None),
        ("CUDA_VISIBLE_DEVICES=0,1 llama-server -m m.gguf", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 llama-server -m m.gguf -sm none", None),
        ("netgain serve default", None),
    ],
)
def test_devices_are_those_that_were_written_or_unknown(command, devices):
    """One was assumed where nothing said so, and told as declared by the user: two GPUs passed as equal to one."""
    assert describe(command).devices == devices


def test_a_file_sets_netgains_settings(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("settings: {engine.model.dtype: bf16, engine.max_running: 4}\n")
    command = launched(describe(str(path)), "candidate", tmp_path).command
    assert command == (
        "netgain", "serve", "default", "--set", "engine.model.dtype=bf16", "--set", "engine.max_running=4",
    )  # fmt: skip


def test_hooks_with_flags_are_an_arm(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("start: ./up.sh\nstop: ./down.sh\nflags: --x 1\nengine: sglang\ndevices: 4\n")
    found = describe(str(path))
    assert (found.engine, found.devices) == ("sglang", 4)
    assert launched(found, "candidate", tmp_path).command[0] == "NETGAIN_FLAGS=--x 1"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("- a\n", "describes no arm"),
        ("engin: vllm\n", "unknown field 'engin': did you mean 'engine'"),
        ("engine: vlm\nmodel: m\n", "Invalid enum value 'vlm'"),
        ("engine: vllm\n", "no default model"),
        ("engine: vllm\nmodel: m\nsettings: {a: 1}\n", "which are netgain's"),
        ("engine: vllm\nmodel: m\nreset: curl x\n", "cannot be used"),
        ("command: x\n", "another environment"),
        ("start: a\n", "missing required field `stop`"),
        ("engine: vllm\nmodel: m\ndevices: 0\n", "occupy 0 devices"),
        ("engine: vllm\nmodel: m\nport: 0\n", "is 0; it must lie in"),
        ("engine: vllm\nmodel: m\nport: many\n", "Expected `int"),
        ("engine: vllm\nmodel: m\nflags: --port 9\n", "the flags name --port"),
        ("engine: vllm\nmodel: m\nflags: --host=h\n", "the flags name --host=h"),
        ("engine: vllm\nmodel: m\ncommand: up.sh --port 9 {flags}\n", "names --port 9 and has no place for {port}"),
        ("settings: {port: 9}\n", "the flags name --set port=9"),
        ("start: a\nstop: b\nport: 9\n", "unknown field 'port'"),
        ("engine: vllm\nmodel: m\npython: p\ncommand: c\n", "give one"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_the_field(tmp_path, text, told):
    path = tmp_path / "arm.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=told):
        describe(str(path))


@pytest.mark.parametrize(
    "text",
    [
        "netgain serve --port 8123 default",
        "vllm serve m --port=8123 --max-num-seqs 8",
        "llama-server --port 8123 -m m",
        "/opt/llama/llama-server -m m --port 8123",
        "python3 -m sglang.launch_server --model-path m --port 8123",
    ],
)
def test_a_port_in_the_command_line_is_pinned_and_shown(tmp_path, text):
    found = described_by_command(text)
    assert found.port == 8123
    assert "8123" not in " ".join(found.starting.flags)
    assert launched(found, "baseline", tmp_path).command[-2:] == ("--port", "8123")


def test_a_port_in_a_file_is_pinned_where_its_command_has_a_place_for_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("engine: vllm\nmodel: m\ncommand: 'docker run -p {port}:80 img {model} {flags}'\nport: 8123\n")
    found = describe(str(path))
    assert found.port == 8123
    assert shlex.join(launched(found, "baseline", tmp_path).command) == "docker run -p 8123:80 img m"
