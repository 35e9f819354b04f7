"""`netgain decide` refuses what it cannot do before it starts anything."""

import datetime
from pathlib import Path

import pytest

from netgain.cli.decide import report_folder
from netgain.cli.main import run

OTHER = ["--engine", "vllm", "--model", "m", "--technique", "kv-tiers"]
SHARED = '--kv-transfer-config {"remote_url":"redis://h:1"}'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workload", "edits"], "did you mean 'edit'"),
        (["--workload", "nowhere/prompts.jsonl"], "cannot be read"),
        (["--technique", "ngrm"], "did you mean 'ngram'"),
        (["--slo", "ttft=fast"], "not understood"),
        (["--technique", "kv-compression", "--codec", "zst"], "did you mean 'zstd'"),
        (["--price", "0"], "the price '0' is not understood"),
        (["--concurrency", "0"], "concurrency is 0"),
        (["--temperature", "9"], "temperature is 9.0"),
        (["--seed", "-1"], "seed is -1"),
        (["--technique", "heads"], "name a draft (--draft)"),
        (["--draft-cost", "0.1"], "name it with --draft"),
        (["--draft", "m", "--draft-survival", "often"], "--draft-survival is 'often'"),
        (["--draft", "m", "--draft-survival", "0.3,0.5"], "survival falls"),
        (["--draft", "m", "--draft-cost", "nan"], "decode step"),
        (["--draft", "/"], "so it is no draft"),
        (["--seed", "99999999999999999999"], "seed is 99999999999999999999"),
        (["--tier", "dram"], "name the technique as well (--technique kv-tiers)"),
        (["--technique", "kv-tiers", "--tier", "tape:1GiB"], "known are dram, disk, lmcache"),
        (["--technique", "kv-tiers", "--tier", "dram:0GiB"], "holds nothing"),
        (["--technique", "kv-tiers", "--tier", "disk"], "needs its folder"),
        (
            ["--technique", "kv-tiers", "--tier", "disk:/proc/none:1GiB"],
            "/proc/none of the disk tier cannot be written",
        ),
        (["--technique", "kv-tiers", "--tier", "lmcache"], "none through LMCache"),
        (["--technique", "kv-tiers", "--tier-reset", "true"], "empties a store that runs apart"),
        (["--technique", "kv-tiers", "--kv-token-bytes", "1KiB"], "is for other engines"),
        (["--codec", "zstd"], "name the technique as well"),
        (["--technique", "kv-compression", "--codec", "zstd:speed=1"], "'speed=1' says nothing"),
        (["--technique", "kv-compression", "--codec", "zstd:ratio=0.5"], "ratio is '0.5'"),
        ([*OTHER, "--tier", "lmcache"], "each is to begin cold"),
        ([*OTHER, "--tier", "disk:kv:1GiB", "--hooks", "HOOKS"], "cannot be emptied from here"),
        (
            ["--engine", "vllm", "--model", "m", "--technique", "kv-compression-lossy", "--codec", "fp8"],
            "one codec inside vLLM is cachegen",
        ),
        (
            [
                *OTHER[:4],
                "--technique",
                "kv-compression-lossy",
                "--codec",
                "cachegen:url=redis://h:1",
                "--flags",
                SHARED,
            ],
            "each would find what the other left",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, said, tmp_path, capsys, leaves_no_process):
    hooks = tmp_path / "hooks.yaml"
    hooks.write_text("start: 'true'\nstop: 'true'\n")
    arguments = [str(hooks) if word == "HOOKS" else word for word in arguments]
    assert run(["decide", *arguments, "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("folder", ["/proc/no-such-folder", "/dev/null"])
def test_a_folder_that_cannot_be_written_is_one_line_and_exit_code_2(folder, capsys, leaves_no_process):
    assert run(["decide", "--output", folder]) == 2
    captured = capsys.readouterr()
    assert f"cannot write {folder}" in captured.err
    assert captured.err.count("\n") == 1


def test_a_setting_that_the_server_refuses_is_one_line_and_exit_code_2(tmp_path, capsys, leaves_no_process):
    assert run(["decide", "--set", "engine.cache.kv_token=1", "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert "did you mean 'kv_tokens'" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("workload", "folder"),
    [
        ("chat", "20260304-050607-chat"),
        ("netgain-recordings/20260101-120000-recording.jsonl", "20260304-050607-recording"),
        ("prompts/2026-mine.jsonl", "20260304-050607-2026-mine"),
    ],
)
def test_a_report_folder_has_one_time_and_what_was_decided_on(workload, folder):
    at = datetime.datetime(2026, 3, 4, 5, 6, 7)
    assert report_folder(workload, at) == Path("netgain-reports", folder)


def test_help_names_the_forms(capsys):
    assert run(["decide", "--help"]) == 0
    told = capsys.readouterr().out
    assert "--quick" in told
    assert "--slo" in told
    assert "--require-tasks" in told


def test_a_baseline_that_cannot_start_shows_its_log(tmp_path, capsys, leaves_no_process):
    missing = str(tmp_path / "no-such-model.gguf")
    assert run(["decide", "--quick", "--model", missing, "--output", str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err
    assert "the baseline server" in told
    assert "no-such-model.gguf" in told
    assert "baseline.log" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "http://127.0.0.1:8000"], "netgain compare"),
        (["--engine", "tgi"], "known are netgain, vllm, sglang, llama.cpp"),
        (["--engine", "vllm"], "has no default model"),
        (["--engine", "vllm", "--model", "m", "--set", "a=b"], "--flags"),
        (["--engine", "vllm", "--model", "m", "--python", "p", "--command", "c"], "give one"),
        (["--flags", "--x"], "netgain starts itself"),
        (["--engine", "vllm", "--model", "m", "--flags", "'"], "cannot be read as a shell would"),
        (["--engine", "vllm", "--model", "m", "--env", "X"], "is not NAME=VALUE"),
        (["--engine", "vllm", "--model", "m", "--flags", "--port 9"], "the flags name --port; leave it out"),
        (["--set", "port=9"], "the flags name --set port=9"),
        (["--start-timeout", "0"], "greater than or equal to"),
        (["--timeout", "0"], "greater than or equal to"),
        (["--budget", "soon"], "write device-hours such as 2h"),
        (["--resume", "a", "--output", "b"], "give --resume or --output"),
        (["--resume", "nowhere"], "nothing to resume in nowhere"),
        (["--hooks", "nowhere.yaml"], "cannot be read"),
    ],
)
def test_what_cannot_be_meant_of_engines_is_refused_before_anything_starts(arguments, told, capfd):
    assert run(["decide", *arguments]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert told in said
