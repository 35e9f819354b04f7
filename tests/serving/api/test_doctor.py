"""`netgain doctor --url` on a real server."""

import json

import pytest

from netgain.cli.main import run
from tests.serving.api.conftest import Server


def test_a_running_server_is_looked_at(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--url", server.url, "--json", "--no-probe", "--wait", "0.1"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert found["health"]["seen"] == "ready"
    assert found["version"]["state"] == "ok"
    assert found["keys"]["seen"].startswith("asks for no API key")
    assert "chain, 4096 tokens" in found["what serves"]["seen"]
    about = next(item for item in found.values() if item["area"] == "server" and item["name"] == "kernels")
    assert (about["state"], "slow reference" in about["means"]) == ("note", True)
