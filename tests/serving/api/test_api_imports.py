"""What each process of a server imports, and when: what it does not need costs seconds at every start."""

import subprocess
import sys

import pytest

# Of the web server and what its half of the work takes; the engine process is launched before any of it is imported.
WEB = {"fastapi", "httptools", "jinja2", "prometheus_client", "starlette", "tokenizers", "uvicorn"}
# What only the lab, tracing or other users of the packages need.
ELSEWHERE = {"aiohttp", "llguidance", "pyarrow", "rich", "scipy", "sympy", "transformers"}


def _imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(name.partition('.')[0] for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_the_engine_process_is_launched_before_the_web_server_is_imported():
    assert not _imported("import netgain.cli.serve") & (WEB | ELSEWHERE | {"numpy", "torch"})


def test_the_api_process_does_not_import_torch():
    imported = _imported("import netgain.cli.serve, netgain.serving.api.server")
    assert imported >= WEB
    assert not imported & (ELSEWHERE | {"torch"})


def test_the_engine_process_imports_no_web_server_and_torch_only_for_a_fleet():
    assert not _imported("import netgain.serving.runtime.engine_process") & (WEB | ELSEWHERE | {"torch"})
    assert not _imported("import netgain.serving.runtime.build") & (WEB - {"jinja2", "tokenizers"} | ELSEWHERE)


@pytest.mark.parametrize("command", ["keys", "model", "doctor"])
def test_other_commands_import_neither_torch_nor_a_web_server(command):
    assert not _imported(f"import netgain.cli.main, netgain.cli.{command}") & (WEB | {"torch"})
