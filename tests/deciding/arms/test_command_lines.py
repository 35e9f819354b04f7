"""Command lines of the engines. SGLang's are from its source at d315eb725044 (python/sglang/srt/server_args.py, 0.5.18): no
machine here runs it."""

import pytest

from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.sglang import launched_sglang
from netgain.deciding.experiment.arms.starting import Starting, command_line
from netgain.deciding.experiment.arms.vllm import first_error, launched_vllm
from netgain.deciding.technique.ngram_switches import ngram_switch
from netgain.errors import UsageError

SETTING = {"k": 4, "lookup_min": 2, "lookup_max": 3}


def words(starting, module=("-m", "engine", "serve"), program=("engine", "serve")):
    build = command_line(starting, module, program, ("M",), ("--x", "1"), lambda port: ("--port", str(port)))
    return build(8000)


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (Starting(), "engine serve M --x 1 --port 8000"),
        (Starting(python="/e/bin/python"), "/e/bin/python -m engine serve M --x 1 --port 8000"),
        (Starting(flags=("--both",)), "engine serve M --both --x 1 --port 8000"),
        (Starting(command="docker run -p {port}:80 img {model} {flags}"), "docker run -p 8000:80 img M --x 1"),
        (Starting(command="run.sh"), "run.sh M --x 1 --port 8000"),
        (Starting(command="run.sh --at=:{port}", flags=("--both",)), "run.sh --at=:8000 M --both --x 1"),
    ],
)
def test_an_engine_is_started_from_an_environment_a_command_line_or_the_path(starting, expected):
    assert " ".join(words(starting)) == expected


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"python": "p", "command": "c"}, "give one"),
        ({"command": "a 'b"}, "cannot be read as a shell would"),
        ({"command": " "}, "is empty"),
        ({"devices": 0}, "occupy 0 devices"),
    ],
)
def test_a_way_to_start_that_cannot_be_meant_is_refused(told, match):
    with pytest.raises(UsageError, match=match):
        Starting(**told)


def test_llama_cpp_is_no_python_program(tmp_path):
    with pytest.raises(UsageError, match="--command"):
        launched_llama_cpp("a", "m.gguf", (), tmp_path / "log", Starting(python="python"))


def test_the_shown_commands_leave_out_what_is_only_for_measuring(tmp_path):
    flags = ngram_switch("vllm", SETTING).flags
    vllm = launched_vllm("a", "org/model", flags, tmp_path / "log", Starting(flags=("--max-num-seqs", "8")))
    assert vllm.command == ("vllm", "serve", "org/model", "--max-num-seqs", "8", *flags)
    sglang = launched_sglang("a", "org/model", ("--tp-size", "2"), tmp_path / "log")
    assert sglang.command == ("python3", "-m", "sglang.launch_server", "--model-path", "org/model", "--tp-size", "2")


def test_vllms_first_error_explains_its_end():
    log = (
        "(EngineCore) WARNING [x.py:1] ValueError: not this\n"
        "(EngineCore) ERROR [core.py:1] ValueError: Total number of attention heads (9) must be divisible by tensor parallel "
        "size (2)\n"
        "(APIServer) RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert "must be divisible by tensor parallel size (2)" in str(first_error(1, log))
    assert first_error(1, "killed") is None


@pytest.mark.parametrize("engine", ["netgain", "vllm", "llama.cpp"])
def test_a_verified_switch_names_the_versions_it_started(engine):
    switch = ngram_switch(engine, SETTING)
    assert switch.checked_with
    assert switch.note.startswith("switches checked with")


def test_an_unverified_switch_says_where_it_was_read_and_is_not_verified():
    switch = ngram_switch("sglang", SETTING)
    assert not switch.verified
    assert "unverified (read from 0.5.18" in switch.note
    assert switch.flags[:4] == ("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4")
