"""Models by their Hub id, from a server that speaks the Hub's paths: what is fetched, and what happens without it."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from safetensors.torch import load_file, save_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-org/tiny-model"


class Hub(ThreadingHTTPServer):
    """Serves the files of a folder as the repository NAME at one commit; `taken` are the paths whose content was sent."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.folder = folder
        self.taken: list[str] = []


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        files = {
            str(file.relative_to(self.server.folder)): file for file in self.server.folder.rglob("*") if file.is_file()
        }
        if path == f"/api/models/{NAME}/revision/main" or path == f"/api/models/{NAME}/revision/{COMMIT}":
            siblings = [{"rfilename": name} for name in files]
            return self._json({"id": NAME, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []})
        if path.startswith(f"/api/models/{NAME}/tree/"):
            entries = [
                {"type": "file", "path": name, "size": file.stat().st_size, "oid": _digest(file)}
                for name, file in files.items()
            ]
            return self._json(entries)
        start = f"/{NAME}/resolve/{COMMIT}/"
        if path.startswith(start) and (file := files.get(path.removeprefix(start))):
            self.send_response(200)
            for key, value in (("ETag", f'"{_digest(file)}"'), ("X-Repo-Commit", COMMIT)):
                self.send_header(key, value)
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()
            if self.command == "GET":
                self.server.taken.append(path.removeprefix(start))
                self.wfile.write(file.read_bytes())
            return None
        self.send_response(404)
        self.send_header("Content-Length", "0")
        return self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def _json(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@contextmanager
def serving(folder: Path) -> Iterator[Hub]:
    hub = Hub(folder)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


OPEN = """
import sys
from netgain.errors import NetgainError
from netgain.serving.model.checkpoint import open_checkpoint
try:
    checkpoint = open_checkpoint(sys.argv[1])
except NetgainError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
print(checkpoint.name, *sorted(file.name for file in checkpoint.path.glob("*.safetensors")))
"""


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Opens NAME against an endpoint, with a Hub cache of the test's own: exit code, output, errors. A process of its own,
    since the Hub's library reads its settings once."""

    def inspect(endpoint: str, **environment: str) -> tuple[int, str, str]:
        own = {
            "HF_ENDPOINT": endpoint,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "NETGAIN_CACHE": str(tmp_path / "netgain"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        command = [sys.executable, "-c", OPEN, NAME]
        done = subprocess.run(
            command, env={**os.environ, **own, **environment}, capture_output=True, text=True, timeout=120, check=False
        )
        return done.returncode, done.stdout, done.stderr

    return inspect


def test_a_sharded_model_is_fetched_without_what_is_not_loaded_and_then_found_in_the_cache(
    tiny: Callable[..., Any], ask: Callable[..., tuple[int, str, str]]
) -> None:
    folder = tiny().folder
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")  # the same weights once more
    names = sorted(tensors)
    place = {name: f"model-0000{1 + at % 2}-of-00002.safetensors" for at, name in enumerate(names)}
    for shard in set(place.values()):
        save_file({name: tensors[name] for name in names if place[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}")
    with serving(folder) as hub:
        endpoint = f"http://127.0.0.1:{hub.server_port}"
        code, output, errors = ask(endpoint)
        assert code == 0, errors
        assert output.split() == [NAME, *sorted(set(place.values()))]
        fetched = set(hub.taken)
        assert {"config.json", "tokenizer.json", *place.values()} <= fetched
        assert not {"consolidated.safetensors", "onnx/config.json"} & fetched
        hub.taken.clear()
        assert ask(endpoint)[0] == 0
        assert hub.taken == []
    assert ask(endpoint)[0] == 0  # nobody answers any more
    assert ask(endpoint, HF_HUB_OFFLINE="1")[0] == 0


def test_a_repository_without_safetensors_says_what_is_missing(
    tiny: Callable[..., Any], ask: Callable[..., tuple[int, str, str]]
) -> None:
    folder = tiny().folder
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with serving(folder) as hub:
        code, _, errors = ask(f"http://127.0.0.1:{hub.server_port}")
    assert code == 2
    assert "lacks model.safetensors; only models with safetensors" in errors.splitlines()[-1]


def test_an_id_that_the_hub_does_not_know_is_one_line(tmp_path: Path, ask: Callable[..., tuple[int, str, str]]) -> None:
    with serving(tmp_path / "nothing") as hub:
        hub.RequestHandlerClass = _NotFound
        code, _, errors = ask(f"http://127.0.0.1:{hub.server_port}")
    assert code == 1
    assert f"hf download {NAME}" in errors.splitlines()[-1]


class _NotFound(_Answer):
    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815
