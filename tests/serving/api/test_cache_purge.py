"""A running server forgets a tenant when an operator says so, and nobody else can make it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from netgain.cli.main import run
from netgain.serving.api.keys import KeyLimits, new_key
from tests.waiting import wait_for

PROMPT = "the same beginning again and again s"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    made = {name: new_key(file, name, KeyLimits(), operator=name == "ops") for name in ("acme", "other", "ops")}
    return made | {"file": str(file)}


@pytest.fixture(scope="module")
def server(start_server: Any, chain_model: Any, keys: dict[str, str], tmp_path_factory: Any) -> Iterator[Any]:
    options = [
        *(str(chain_model.folder), "--api-keys", keys["file"], "--kv-policy", "always"),
        *("--kv-tier", "dram:16MiB", "--kv-tier", f"disk:{tmp_path_factory.mktemp('kv')}:16MiB?admit=second-use"),
        *("--set", "engine.model.kernels=torch", "--set", "engine.cache.block_tokens=8"),
        *("--set", "fleet.heartbeat_s=0.1", "--set", "engine.cache.kv_tokens=512"),
    ]
    with start_server(*options) as started:
        yield started


def cached(server: Any, key: str) -> int:
    body = json.dumps({"prompt": PROMPT, "temperature": 0, "max_tokens": 4}).encode()
    answer = server.send("/v1/completions", body, headers={"Authorization": f"Bearer {key}"})
    assert answer.status == 200, answer.json
    details = answer.json["usage"]["prompt_tokens_details"]
    return int(details["cached_tokens"]) + int(details.get("loaded_tokens", 0))


def purge(server: Any, key: str | None, query: str) -> Any:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return server.send(f"/netgain/cache/purge{query}", b'{"tenant": "other"}', headers=headers)


def test_only_an_operator_may_and_has_to_say_whose(server: Any, keys: dict[str, str]) -> None:
    assert cached(server, keys["acme"]) == 0
    for key, query, status in (
        (None, "?tenant=acme", 401),
        (keys["acme"], "?tenant=acme", 403),
        (keys["acme"], "?all=true", 403),
        (keys["ops"], "", 400),
        (keys["ops"], "?tenant=acme&all=true", 400),
        (keys["ops"], "?all=perhaps", 400),
    ):
        answer = purge(server, key, query)
        assert answer.status == status, (query, answer.json)
        assert answer.json["error"]["message"]
    assert cached(server, keys["acme"]) >= 32, "nothing was purged by any of that"


def test_the_tenant_that_is_named_is_forgotten_and_no_other(server: Any, keys: dict[str, str]) -> None:
    for name in ("acme", "other"):
        cached(server, keys[name])
        assert cached(server, keys[name]) >= 32
    answer = purge(server, keys["ops"], "?tenant=acme")
    assert answer.status == 200
    [engine] = answer.json["engines"].values()
    assert engine["device_blocks"] >= 4
    assert engine["store"]["failed"] is None
    assert {*engine["store"]["tiers"]} == {"dram", "disk"}
    assert cached(server, keys["acme"]) == 0
    assert cached(server, keys["other"]) >= 32


def test_the_command_purges_a_server(
    server: Any, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cached(server, keys["other"])
    monkeypatch.delenv("NETGAIN_API_KEY", raising=False)
    purge_other = ["cache", "purge", server.url, "--tenant", "other", "--yes"]
    assert run(purge_other) == 1
    assert "refused with 401" in capsys.readouterr().out
    assert cached(server, keys["other"]) >= 32
    monkeypatch.setenv("NETGAIN_API_KEY", keys["ops"])

    def tiers() -> Any:
        assert run(["cache", "stats", server.url, "--json"]) == 0
        return json.loads(capsys.readouterr().out)[0]["tiers"]

    wait_for(lambda: tiers()["disk"]["not_admitted"] >= 4)  # once it was offered, and a heartbeat told of it
    assert tiers()["dram"]["not_admitted"] == 0
    assert run([*purge_other, "--json"]) == 0
    [place] = json.loads(capsys.readouterr().out)["locations"]
    [engine] = place["engines"].values()
    assert engine["device_blocks"] >= 4
    assert engine["store"]["tiers"]["disk"]["removed"] + engine["store"]["queued"] >= 4
    assert run(purge_other) == 0
    assert "0 blocks on the device" in capsys.readouterr().out
    assert cached(server, keys["other"]) == 0
    assert run(["cache", "purge", server.url, "--older-than", "1d", "--yes"]) == 2
    assert "retention_s" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str], free_port: int) -> None:
    assert run(["cache", "purge", f"http://127.0.0.1:{free_port}", "--all", "--yes"]) == 1
    assert "does not answer" in capsys.readouterr().out
