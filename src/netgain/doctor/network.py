"""The port to serve on, and a server that already runs."""

import errno
import importlib.metadata
import os
import re
import socket
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec
import psutil

from netgain.doctor.finding import Finding, note, ok, problem, unknown
from netgain.measuring.client.endpoint import base_url

_ANSWER_S = 2.0
_MOST_BYTES = 1 << 22
_KEY = "NETGAIN_API_KEY"


def port(host: str, number: int) -> Iterator[Finding]:
    """Whether a server could listen there now."""
    where = f"port {number} on {host}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:
        means = "a server cannot listen there"
        yield problem("network", "port", f"{host!r} is no address: {error}", means, "netgain serve --host 127.0.0.1")
        return
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                seen = f"{where} is taken by {_holder(number)}"
                mend = f"stop it, or netgain serve --port {number + 1 if number < 65535 else 0}"
                yield problem("network", "port", seen, "a server cannot listen there", mend)
            else:
                seen = f"{where}: {error.strerror}"
                mend = "netgain serve --port 8000" if error.errno == errno.EACCES else "netgain serve --host 127.0.0.1"
                yield problem("network", "port", seen, "a server cannot listen there", mend)
            return
    yield ok("network", "port", f"{where} is free")


def _holder(number: int) -> str:
    try:
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == number and found.pid:
                process = psutil.Process(found.pid)
                return f"process {found.pid} ({' '.join(process.cmdline())[:80] or process.name()})"
    except (psutil.Error, OSError):
        pass
    return "a process that this user may not see"


class _Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.MsgspecError, RecursionError):
            return None


def server(url: str) -> Iterator[Finding]:
    """What a running server says of itself. The key in NETGAIN_API_KEY is used where one is asked for."""
    base = base_url(url)
    try:
        health = _get(f"{base}/health")
        models = _get(f"{base}/v1/models")
        bare_models = models if not os.environ.get(_KEY) else _get(f"{base}/v1/models", with_key=False)
    except OSError as error:
        yield _unreachable(base, error)
        return
    yield ok("server", "reachable", base)
    yield from _health(base, health)
    yield from _keys(urlsplit(base).hostname or "", bare_models)
    yield from _identity(base, models)
    yield from _tiers(base)


def _tiers(base: str) -> Iterator[Finding]:
    """KV tiers whose server's own limit works against them, by a netgain server's metrics."""
    try:
        text = _get(f"{base}/metrics").body.decode("utf-8", "replace")
    except OSError:
        return
    found = re.findall(r'^netgain_kv_tier_notices\{[^}]*tier="([^"]*)"[^}]*\} ([\d.e+]+)$', text, re.MULTILINE)
    for tier in sorted({tier for tier, number in found if float(number) > 0}):
        yield note(
            "server",
            f"KV tier {tier}",
            "its server's own limit of memory works against keeping KV there",
            "KV is refused once the server is full, or takes all of its memory",
            "netgain cache stats valkey://HOST:PORT/DB says what to set",
        )


def _unreachable(base: str, error: OSError) -> Finding:
    seen = f"{base}: {error}"
    if "CERTIFICATE_VERIFY_FAILED" in seen:
        means = "its certificate is not signed by an authority that this machine trusts, so clients refuse it"
        return problem("server", "reachable", seen, means, "export SSL_CERT_FILE=/the/certificate/of/its/authority.pem")
    return problem(
        "server", "reachable", seen, "no client can reach it", f"check the URL and the server, curl -v {base}/health"
    )


def _health(base: str, health: _Answer) -> Iterator[Finding]:
    if health.status == 200:
        yield ok("server", "health", "ready")
    elif health.status == 404:
        yield unknown("server", "health", "it has no /health")
    else:
        found = health.json
        error = found.get("error") if isinstance(found, dict) else None
        cause = error.get("message") if isinstance(error, dict) else f"status {health.status}"
        yield problem("server", "health", str(cause), "requests are refused now", f"curl {base}/health; see its log")


def _keys(host: str, models: _Answer) -> Iterator[Finding]:
    local = host in ("localhost", "127.0.0.1", "::1")
    if models.status in (401, 403):
        yield ok("server", "keys", "asks for an API key")
    elif local:
        yield ok("server", "keys", "asks for no API key; asked here through this machine's own address")
    else:
        mend = "netgain keys --help"
        yield note("server", "keys", "asks for no API key", "whoever reaches it may use it", mend)


def _identity(base: str, models: _Answer) -> Iterator[Finding]:
    if models.status in (401, 403):
        yield unknown("server", "what serves", "it tells only with a key", f"{_KEY}=... netgain doctor --url {base}")
        return
    found = models.json
    cards = found.get("data") if isinstance(found, dict) else None
    card = cards[0] if isinstance(cards, list) and cards and isinstance(cards[0], dict) else None
    if card is None:
        yield problem(
            "server",
            "what serves",
            f"/v1/models says status {models.status}",
            "not OpenAI-compatible",
            f"curl {base}/v1/models",
        )
        return
    about = card.get("netgain")
    if not isinstance(about, dict):
        yield ok("server", "what serves", f"{card.get('id')}, not a netgain server")
        return
    told = ", ".join(f"{name} {about[name]}" for name in ("dtype", "kv_dtype", "device", "threads") if name in about)
    yield ok("server", "what serves", f"{card.get('id')}, {card.get('max_model_len')} tokens, {told}")
    kernels = str(about.get("kernels", ""))
    if kernels.startswith("torch") and about.get("device") == "cpu":
        means = "the slow reference kernels compute, about ten times slower than compiled ones"
        yield note("server", "kernels", kernels, means, "apt install g++, or pip install ziglang; then restart it")
    else:
        yield ok("server", "kernels", kernels or "not told")
    yield from _version(base)


def _version(base: str) -> Iterator[Finding]:
    here = importlib.metadata.version("netgain")
    try:
        text = _get(f"{base}/metrics").body.decode("utf-8", "replace")
    except OSError as error:
        yield unknown("server", "version", f"its metrics cannot be read: {error}")
        return
    line = next((line for line in text.splitlines() if line.startswith("netgain_build_info{")), "")
    there = line.partition('version="')[2].partition('"')[0]
    if not there:
        yield unknown("server", "version", "its metrics cannot be read")
    elif there != here:
        yield note("server", "version", f"{there}, here is {here}", "client and server differ", "restart the server")
    else:
        yield ok("server", "version", there)


def _get(url: str, with_key: bool = True) -> _Answer:
    """Raises OSError when there is no HTTP answer in time."""
    key = os.environ.get(_KEY) if with_key else None
    until_s = time.monotonic() + _ANSWER_S
    try:
        request = Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
        with urlopen(request, timeout=_ANSWER_S) as response:
            return _Answer(response.status, _body(response, until_s))
    except HTTPError as error:
        with error:
            return _Answer(error.code, _body(error, until_s))
    except URLError as error:
        raise OSError(str(error.reason)) from error
    except (HTTPException, ValueError, EOFError) as error:
        raise OSError(f"it answers no HTTP that can be read ({type(error).__name__})") from error


def _body(response: Any, until_s: float) -> bytes:
    """What comes in time: a server that sends a byte now and then would hold up each read for ever."""
    data = b""
    while len(data) < _MOST_BYTES and (piece := response.read1(1 << 16)):
        data += piece
        if time.monotonic() > until_s:
            raise TimeoutError(f"its answer was not complete within {_ANSWER_S:g} s")
    return data
