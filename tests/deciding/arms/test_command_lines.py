"""Command lines of the engines. SGLang's are from its source at d315eb725044 (python/sglang/srt/server_args.py, 0.5.18): no
machine here runs it."""

import pytest

from netgain.deciding.experiment.arms import llama_cpp, sglang, vllm
from netgain.deciding.experiment.arms.llama_cpp import launched_llama_cpp
from netgain.deciding.experiment.arms.sglang import launched_sglang
from netgain.deciding.experiment.arms.starting import (
    MeasuringFlag,
    Starting,
    command_line,
    given_words,
    measuring_words,
)
from netgain.deciding.experiment.arms.vllm import first_error, launched_vllm
from netgain.deciding.technique.ngram_switches import ngram_switch
from netgain.errors import UsageError

SETTING = {"k": 4, "lookup_min": 2, "lookup_max": 3}
AT = "--host 127.0.0.1 --port 8000"
MEASURING = (
    MeasuringFlag(words=("--count",), names=("--count", "--no-count"), variable="COUNT"),
    MeasuringFlag(words=("--cache-ram", "0"), names=("--cache-ram", "-cram")),
)


def line(starting, flags=("--x", "1"), measuring=(), pinned=None):
    return command_line(
        starting, ("-m", "engine", "serve"), ("engine", "serve"), ("M",), flags, measuring=measuring, pinned=pinned
    )


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (Starting(), f"engine serve M --x 1 {AT}"),
        (Starting(python="/e/bin/python"), f"/e/bin/python -m engine serve M --x 1 {AT}"),
        (Starting(flags=("--both",)), f"engine serve M --both --x 1 {AT}"),
        (Starting(command="docker run -p {port}:80 img {model} {flags}"), "docker run -p 8000:80 img M --x 1"),
        (Starting(command="run.sh"), f"run.sh M --x 1 {AT}"),
        (Starting(command="run.sh --at=:{port}", flags=("--both",)), "run.sh --at=:8000 M --both --x 1"),
        (
            Starting(command="sh -c 'engine {model} {flags} --port {port}'", flags=("--name", "a b")),
            "sh -c engine M --name 'a b' --x 1 --port 8000",
        ),
    ],
)
def test_an_engine_is_started_from_an_environment_a_command_line_or_the_path(starting, expected):
    assert " ".join(line(starting).at(8000)) == expected


@pytest.mark.parametrize(
    ("starting", "pinned", "expected"),
    [
        (Starting(), None, "engine serve M --x 1"),
        (Starting(python="/e/bin/python"), 9000, "engine serve M --x 1 --port 9000"),
        (Starting(command="img -p {port}:80 {model} {flags}"), None, "img -p {port}:80 M --x 1"),
        (Starting(command="img -p {port}:80 {model} {flags}"), 9000, "img -p 9000:80 M --x 1"),
        (Starting(command="run.sh --own 2"), 9000, "run.sh --own 2 M --x 1 --port 9000"),
    ],
)
def test_what_is_shown_is_the_users_own_command_with_a_port_only_where_it_is_pinned(starting, pinned, expected):
    assert " ".join(line(starting, measuring=MEASURING, pinned=pinned).shown) == expected


@pytest.mark.parametrize(
    ("starting", "added"),
    [
        (Starting(), "--count --cache-ram 0"),
        (Starting(flags=("--cache-ram", "8192")), "--count"),
        (Starting(flags=("--cache-ram=8192",)), "--count"),
        (Starting(flags=("--cache_ram", "8192")), "--count"),
        (Starting(flags=("-cram", "8192")), "--count"),
        (Starting(flags=("--no-count",)), "--cache-ram 0"),
        (Starting(command="run.sh --cache-ram 8192 {flags}"), "--count"),
        (Starting(command="sh -c 'engine --cache-ram=8192 {flags}'"), "--count"),
        (Starting(environment={"COUNT": "0"}), "--cache-ram 0"),
        (Starting(command="docker run -e COUNT=0 img {flags}"), "--cache-ram 0"),
    ],
)
def test_what_the_user_gives_is_what_runs_and_flags_for_measuring_stand_before_it(starting, added):
    assert measuring_words(MEASURING, given_words(starting), starting.environment) == tuple(added.split())
    found = line(starting, measuring=MEASURING)
    if starting.command is None:
        assert " ".join(found.at(8000)) == " ".join(("engine serve M", added, *starting.flags, "--x 1", AT))
    else:
        assert f"{added} --x 1" in " ".join(found.at(8000))
    assert found.shown == line(starting).shown


def test_a_techniques_own_flag_is_not_undone_by_measuring():
    assert "0" not in line(Starting(), ("--cache-ram", "64"), MEASURING).at(8000)


@pytest.mark.parametrize(
    ("measuring", "given"),
    [
        (vllm.MEASURING_FLAGS, "--no-enable-prompt-tokens-details"),
        (vllm.MEASURING_FLAGS, "--enable_prompt_tokens_details"),
        (sglang.MEASURING_FLAGS, "--enable-metrics"),
        (llama_cpp.measuring_flags, "--slot-save-path=/mine"),
        (llama_cpp.measuring_flags, "-cram"),
    ],
)
def test_every_engines_flags_for_measuring_give_way_to_the_users(tmp_path, measuring, given):
    flags = measuring if isinstance(measuring, tuple) else measuring(tmp_path)
    whole, left = measuring_words(flags, (), {}), measuring_words(flags, (given,), {})
    assert set(left) < set(whole)


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
