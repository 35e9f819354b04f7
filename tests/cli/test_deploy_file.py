"""The file that a verdict gives beside a `netgain serve` command is the same server."""

import inspect
from pathlib import Path

import pytest

from netgain.cli.main import run
from netgain.cli.serve import serve
from netgain.deciding.verdict.deploy import netgain_file

NO_SETTINGS = {"model", "set_", "config", "print_config"}
OPTIONS = {
    "host": ("--host", "0.0.0.0"),
    "port": ("--port=0",),
    "dtype": ("--dtype", "int8"),
    "kv_dtype": ("--kv-dtype=bf16",),
    "activations": ("--activations", "fp32"),
    "speculation": ("--speculation", "draft"),
    "draft": ("--draft", "135"),
    "kv_tier": ("--kv-tier", "dram:64MiB", "--kv-tier", "disk:/var/kv:1GiB?admit=second-use"),
    "kv_policy": ("--kv-policy", "always"),
    "records": ("--records", "records.jsonl"),
    "api_keys": ("--api-keys", "keys.json"),
}


def test_every_option_of_serve_that_is_a_setting_is_known() -> None:
    assert set(inspect.signature(serve).parameters) - NO_SETTINGS == set(OPTIONS)


def test_the_file_beside_a_command_is_the_same_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where --set says otherwise than an option of its own, before it or behind it."""
    given = ("default", "--set", "engine.model.dtype=bf16", *(word for words in OPTIONS.values() for word in words))
    command = ("netgain", "serve", *given, "--set", "engine.kv.policy=never", "--set=engine.speculation.k=3")
    written = netgain_file(command)
    assert written is not None
    file = tmp_path / "server.yaml"
    file.write_text(written)
    assert run([*command[1:], "--print-config"]) == 0
    by_command = capsys.readouterr().out
    assert run(["serve", "--config", str(file), "--print-config"]) == 0
    assert capsys.readouterr().out == by_command


def test_a_command_that_reads_a_file_itself_has_no_other() -> None:
    assert netgain_file(("netgain", "serve", "default", "--config", "own.yaml")) is None
