"""What `netgain doctor` says of a machine that is well, and of one that is not; faults are real ones."""

import contextlib
import json
import os
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from netgain.doctor import network
from netgain.doctor.cgroup import cpu_quota, memory_left
from netgain.doctor.finding import Finding, State
from netgain.serving.model.fetch import MODEL_FILE
from netgain.wording import count
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def _doctor(
    *arguments: str, flags: tuple[str, ...] = (), before: Callable[[], None] | None = None, **environment: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and findings by name; torch is not waited for unless asked."""
    done = subprocess.run(
        [
            sys.executable,
            *flags,
            "-m",
            "netgain.cli.main",
            "doctor",
            "--json",
            "--no-probe",
            *("--wait", "0.1"),
            *arguments,
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        preexec_fn=before,
    )
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["stops_serving"] == (done.returncode == 1)
    return done.returncode, {finding["name"]: finding for finding in found["findings"]}


def test_every_finding_that_is_not_well_says_what_it_means_and_how_to_mend_it(free_port: int) -> None:
    pytest.importorskip("torch")
    began_s = time.monotonic()
    code, found = _doctor("--port", str(free_port), "--wait", "30")
    assert code == 0, [finding for finding in found.values() if finding["state"] == "problem"]
    assert time.monotonic() - began_s < PATIENCE_S
    assert found["torch"]["state"] == "ok"
    assert found["python"]["seen"].startswith(".".join(map(str, sys.version_info[:2])))
    assert found["port"] == {**found["port"], "state": "ok", "seen": f"port {free_port} on 127.0.0.1 is free"}
    for finding in found.values():
        assert finding["seen"]
        assert finding["state"] in ("ok", "unknown") or finding["means"]
        assert finding["state"] != "problem" or finding["mend"]


def test_a_taken_port_stops_serving_and_its_holder_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        code, found = _doctor("--port", str(holder.getsockname()[1]))
    assert code == 1
    assert found["port"]["state"] == "problem"
    assert f"process {os.getpid()}" in found["port"]["seen"]
    assert "--port" in found["port"]["mend"]


@pytest.mark.parametrize(("most", "state"), [(64, "problem"), (256, "note"), (4096, "ok")])
def test_the_limit_of_file_descriptors_is_judged(most: int, state: str, free_port: int) -> None:
    code, found = _doctor(
        "--port", str(free_port), before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    )
    assert found["file descriptors"]["state"] == state
    assert code == (state == "problem")


def test_a_cache_folder_that_cannot_be_written_stops_serving_when_it_is_empty(free_port: int) -> None:
    code, found = _doctor("--port", str(free_port), NETGAIN_CACHE="/proc/netgain")
    assert code == 1
    assert found["folder"]["state"] == "problem"
    assert "NETGAIN_CACHE" in found["folder"]["mend"]


def test_a_damaged_model_is_found_by_its_digest(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / MODEL_FILE).write_bytes(b"GGUF but not ours")
    code, found = _doctor("--port", str(free_port), NETGAIN_CACHE=str(tmp_path))
    assert code == 1
    assert "damaged" in found["default model"]["means"]
    assert found["default model"]["mend"].startswith("rm ")


def test_a_missing_model_and_missing_kernels_are_notes(tmp_path: Path, free_port: int) -> None:
    code, found = _doctor("--port", str(free_port), NETGAIN_CACHE=str(tmp_path / "new"), CXX=sys.executable)
    assert code == 0
    assert found["default model"]["state"] == "note"
    assert found["kernels"]["state"] == "note"
    assert not (tmp_path / "new").exists(), "looking leaves nothing behind"


def test_no_compiler_means_the_slow_kernels(free_port: int) -> None:
    _, found = _doctor("--port", str(free_port), CXX="/no/such/compiler")
    assert found["kernels"]["state"] == "note"
    assert "slow reference kernels" in found["kernels"]["means"]


def test_without_torch_it_runs_and_says_so(tmp_path: Path, free_port: int) -> None:
    """The packages of this environment but torch, as in a base install."""
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith("torch"):
            (tmp_path / entry.name).symlink_to(entry)
    paths = os.pathsep.join((str(ROOT / "src"), str(tmp_path)))
    code, found = _doctor("--port", str(free_port), flags=("-S",), PYTHONPATH=paths)
    assert code == 1
    assert found["torch"]["seen"] == "not installed"
    assert "pip install '.[serve]'" in found["torch"]["mend"]
    assert "not installed: torch" in found["serve"]["seen"]


def test_words_for_people_have_the_same_findings(free_port: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "netgain.cli.main", "doctor", "--no-probe", "--wait", "0.1", "--port", str(free_port)],
        env=os.environ | {"NETGAIN_CACHE": "/proc/netgain"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "problem  folder" in done.stdout
    assert "mend: export NETGAIN_CACHE" in done.stdout
    problems = done.stdout.count("\n  problem ")
    assert done.stdout.splitlines()[-1].startswith(count(problems, "problem"))


def test_an_address_that_is_none_is_a_problem_of_the_port() -> None:
    (found,) = network.port("no.such.host.invalid", 8000)
    assert found.state is State.PROBLEM


def test_limits_of_control_groups_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 300\n")
    assert cpu_quota(tmp_path) == 1.5
    assert memory_left(tmp_path) == (1000, 400)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_quota(tmp_path) is None
    assert memory_left(tmp_path) is None


class _Stranger:
    """A server that is not netgain's: `answers` maps a path to status and body."""

    def __init__(self, answers: dict[str, tuple[int, bytes]]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answers.get(self.path, (404, b"{}"))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def stranger() -> Iterator[Callable[[dict[str, tuple[int, bytes]]], str]]:
    made: list[_Stranger] = []

    def make(answers: dict[str, tuple[int, bytes]]) -> str:
        made.append(_Stranger(answers))
        return made[-1].url

    yield make
    for one in made:
        one.server.shutdown()
        one.server.server_close()


def _named(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_server_of_another_kind_is_looked_at_as_far_as_it_tells(stranger: Callable[..., str]) -> None:
    found = _named(network.server(stranger({"/v1/models": (200, b'{"data": [{"id": "m"}]}')}) + "/v1"))
    assert found["reachable"].state is State.OK
    assert found["health"].state is State.UNKNOWN
    assert "not a netgain server" in found["what serves"].seen


def test_a_tier_whose_server_works_against_it_is_named(stranger: Callable[..., str]) -> None:
    told = b"""# TYPE netgain_kv_tier_notices gauge
netgain_kv_tier_notices{replica="0",tier="valkey"} 1.0
netgain_kv_tier_notices{replica="1",tier="valkey"} 1.0
netgain_kv_tier_notices{replica="0",tier="dram"} 0.0
"""
    answers = {"/v1/models": (200, b'{"data": [{"id": "m"}]}'), "/metrics": (200, told)}
    found = _named(network.server(stranger(answers)))
    assert found["KV tier valkey"].state is State.NOTE
    assert "KV tier dram" not in found


def test_a_server_that_asks_for_a_key_and_is_ill(stranger: Callable[..., str]) -> None:
    ill = b'{"error": {"message": "no engine is ready: killed"}}'
    found = _named(network.server(stranger({"/health": (503, ill), "/v1/models": (401, b"{}")})))
    assert found["health"].state is State.PROBLEM
    assert "killed" in found["health"].seen
    assert found["keys"].state is State.OK
    assert found["what serves"].state is State.UNKNOWN


def test_a_server_that_is_not_there_is_a_problem(free_port: int) -> None:
    (found,) = network.server(f"http://127.0.0.1:{free_port}")
    assert found.state is State.PROBLEM


def test_a_cache_path_that_is_a_file_is_a_problem(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "cache").write_text("")
    code, found = _doctor("--port", str(free_port), NETGAIN_CACHE=str(tmp_path / "cache"))
    assert (code, found["folder"]["state"]) == (1, "problem")


@contextlib.contextmanager
def _answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that treats each connection with `answer`; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_server_that_drips_its_answer_is_not_waited_for() -> None:
    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for _ in range(100):
                connection.sendall(b"a")
                time.sleep(0.2)

    with _answering(drip) as url:
        began_s = time.monotonic()
        (found,) = network.server(url)
    assert time.monotonic() - began_s < 15  # of the 20 s that the answer takes
    assert (found.state, "not complete" in found.seen) == (State.PROBLEM, True)


def test_what_answers_no_http_is_a_problem_and_no_fault_of_the_doctor() -> None:
    def nonsense(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            connection.recv(4096)
            connection.sendall(b"HELLO\r\n")

    with _answering(nonsense) as url:
        (found,) = network.server(url)
    assert (found.state, "no HTTP" in found.seen) == (State.PROBLEM, True)


def test_a_certificate_that_nobody_signed_is_told_with_its_mend(tmp_path: Path) -> None:
    files = [str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")]
    if shutil.which("openssl") is None:
        pytest.skip("no openssl")
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*make, "-keyout", files[0], "-out", files[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])

    def greet(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
            secured.recv(4096)

    with _answering(greet) as url:
        (found,) = network.server(url.replace("http:", "https:").replace("127.0.0.1", "localhost"))
    assert found.state is State.PROBLEM
    assert "SSL_CERT_FILE" in (found.mend or "")


def test_names_that_are_no_text_stay_json(free_port: int) -> None:
    _, found = _doctor("--port", str(free_port), NETGAIN_CACHE=os.fsdecode(b"/tmp/none\xff"))
    assert found["folder"]["seen"].startswith("/tmp/none\udcff")


def test_an_address_of_another_machine_is_mended_by_the_host() -> None:
    (found,) = network.port("192.0.2.1", 8000)
    assert found.mend == "netgain serve --host 127.0.0.1"


def test_a_user_who_may_start_no_process_is_told_so(free_port: int) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    program = (
        "import os, resource, hashlib, json, netgain.cli.main as m, netgain.cli.doctor;"
        "resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)); os.setresgid(54321, 54321, 54321);"
        "os.setresuid(54321, 54321, 54321);"
        f"import sys; sys.exit(m.run(['doctor', '--no-probe', '--json', '--port', '{free_port}', '--wait', '0.1']))"
    )
    environment = os.environ | {"NETGAIN_CACHE": "/tmp/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (1, "")
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["processes"]["state"] == "problem"
    assert "no process can be started" in found["torch"]["seen"]
