"""The OpenAPI document is kept: requests drawn from it, right and wrong ones, are answered as it says.

Whether a drawn request is taken is not checked, since a schema cannot say what fields have to say together.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings

pytest.importorskip("schemathesis")

import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

KEPT = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
REFUSED_UNREAD = (408, 413, 431)  # a request that is refused for its size or slowness, before anyone looks what it says
EXAMPLES = 30
OPERATIONS = [
    ("/v1/chat/completions", "post"),
    ("/v1/completions", "post"),
    ("/tokenize", "post"),
    ("/detokenize", "post"),
    ("/v1/models", "get"),
    ("/v1/models/{name}", "get"),
    ("/health", "get"),
    ("/metrics", "get"),
]


@pytest.fixture(scope="module")
def document(start_server, server_options) -> Iterator[object]:
    """Answers are short, since a request drawn at random seldom says how long its own may be."""
    with start_server(*server_options, "--set", "limits.max_tokens=4") as started:
        yield schemathesis.openapi.from_url(f"{started.url}/openapi.json")


def refused(context, response, case) -> bool | None:
    return response.status_code in REFUSED_UNREAD or negative_data_rejection(context, response, case)


def send_drawn(operation, mode: GenerationMode, checks) -> None:
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case) -> None:
        case.validate_response(case.call(), checks=checks)

    send()


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_what_the_document_allows_is_answered_as_it_says(document, path, method):
    send_drawn(document[path][method], GenerationMode.POSITIVE, KEPT)


@pytest.mark.parametrize(("path", "method"), [operation for operation in OPERATIONS if operation[1] == "post"])
def test_what_the_document_forbids_is_refused(document, path, method):
    """vllm-project/vllm#42961."""
    send_drawn(document[path][method], GenerationMode.NEGATIVE, [*KEPT, refused])


def test_every_operation_of_the_document_is_tried(document):
    described = {path for path in document if not path.startswith(("/netgain", "/health/"))}
    assert described == {path for path, _ in OPERATIONS}
