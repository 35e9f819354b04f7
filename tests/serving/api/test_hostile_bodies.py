"""Bodies and paths made to cost: what comes back, and what is written to the log, does not grow with what was sent."""

import gzip
import json
import socket
import time
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from netgain.errors import RequestRejected
from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.errors import to_api_error
from netgain.serving.api.protocol import CompletionRequest
from netgain.serving.api.tokenize import DetokenizeRequest

COMPLETIONS = "/v1/completions"
ASKED = json.dumps({"prompt": "s", "temperature": 0, "max_tokens": 8}).encode()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ChatRequest, b'{"messages": [%s]}'),
        (ChatRequest, b'{"messages": [{"role": "user", "content": "s"}], "documents": [%s]}'),
        (ChatRequest, b'{"messages": [{"role": "user", "content": "s"}], "tools": [%s]}'),
        (ChatRequest, b'{"messages": [{"role": "assistant", "tool_calls": [%s]}]}'),
        (CompletionRequest, b'{"prompt": "s", "stop_token_ids": [%s]}'),
        (CompletionRequest, b'{"prompt": [[], %s]}'),
        (DetokenizeRequest, b'{"tokens": [%s]}'),
    ],
)
def test_of_a_list_that_is_wrong_throughout_only_the_start_is_put_into_words(kind, body):
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(body % b", ".join([b"-1.5"] * 20_000))
    assert refused.value.error_count() == 1
    assert to_api_error(refused.value).status == 400


def test_no_message_grows_with_the_request():
    error = to_api_error(RequestRejected(f"the model {'x' * 1_000_000!r} is not served here", "model"))
    assert len(error.body) < 2000
    assert error.detail.message.startswith("the model 'xx")
    assert error.detail.message.endswith("is not served here")
    assert str(error) == error.detail.message  # the log's


def test_what_is_wrong_is_shown_without_looking_at_all_of_it():
    nested = '{"a": ' * 90 + "1" + "}" * 90
    for wrong in ("[" + "7, " * 200_000 + "7]", json.dumps("x" * 500_000), nested, "9" * 4000):
        with pytest.raises(ValidationError) as refused:
            CompletionRequest.model_validate_json(f'{{"prompt": "s", "user": 1, "stream": {wrong}}}')
        assert len(to_api_error(refused.value).body) < 500


def test_more_prompts_than_any_server_takes_are_counted_first():
    with pytest.raises(ValidationError, match="5000 prompts were sent, at most 1024"):
        CompletionRequest.model_validate_json(json.dumps({"prompt": ["a"] * 5000}))


def test_a_compressed_body_is_refused_by_name(server):
    answer = server.send(COMPLETIONS, gzip.compress(ASKED), headers={"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert "'gzip'" in answer.json["error"]["message"]
    assert answer.headers["accept-encoding"] == "identity"
    assert server.send(COMPLETIONS, ASKED, headers={"Content-Encoding": "identity"}).status == 200


def test_a_byte_order_mark_is_passed_over(server):
    assert server.send(COMPLETIONS, b"\xef\xbb\xbf" + ASKED).json["choices"][0]["text"] == "short answer"


def test_no_path_and_no_value_writes_its_own_line_into_the_log(server):
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port), timeout=10) as client:
        client.sendall(b"GET /v1/%0Aforged%1b[2K HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 404")
    assert server.post(COMPLETIONS, prompt="s", guided_regex="\x1b[2K(\nforged").status == 400
    assert server.post(COMPLETIONS, prompt="s", guided_json={"type": "\nforged\x1b"}).status == 400
    assert server.send("/v1/" + "x" * 20_000).status == 404
    assert server.send("/health").status == 200
    assert not [line for line in server.lines if line.startswith("forged") or "\x1b" in line or len(line) > 1500]
    assert any("/v1/%0Aforged" in line for line in server.lines)


def say(server, *parts: bytes) -> bytes:
    """Everything that comes back for bytes sent in these parts."""
    at = urlsplit(server.url)
    with socket.create_connection((at.hostname, at.port), timeout=10) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.05)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade", b"UPGRADE"])
def test_a_request_that_offers_another_protocol_is_answered_in_this_one(server, protocol, name):
    """Java's HTTP client sends `Upgrade: h2c` with its first request; the body was lost."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
    head += b"%s: %s\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: %d\r\n\r\n" % (name, protocol, len(ASKED))
    assert b'"short answer"' in say(server, head + ASKED)
    assert b'"short answer"' in say(server, head, ASKED)


def test_a_length_of_thousands_of_digits_is_read_or_refused(server):
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %s\r\n\r\n"
    assert b'"short answer"' in say(server, head % str(len(ASKED)).encode().rjust(4900, b"0") + ASKED)
    assert say(server, head % (b"9" * 4900)).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
