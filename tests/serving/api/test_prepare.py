"""What a client that leaves fields out gets."""

import pytest

pytest.importorskip("torch")

from netgain.serving.api.auth import Identity
from netgain.serving.api.chat_protocol import ChatRequest
from netgain.serving.api.errors import ApiError
from netgain.serving.api.keys import KeyLimits
from netgain.serving.api.prepare import prepare
from netgain.serving.api.protocol import CompletionRequest, GenerationRequest
from netgain.serving.api.served import ServedModel
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.runtime.config import LimitSettings

CHAT = ChatRequest.model_validate({"messages": [{"role": "user", "content": "s"}]})


def text(length: int) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": [5] * length})


@pytest.mark.parametrize(
    ("request_", "limit", "expected"),
    [
        (text(1), None, 16),
        (text(30), None, 10),
        (text(1), 8, 8),
        (text(39), 8, 1),
        (CHAT, None, 39),
        (CHAT, 8, 8),
    ],
)
def test_an_unsaid_limit_is_never_too_much(chain_model, request_: GenerationRequest, limit, expected):
    info = {"model": "m", "max_length": 40, "kv_tokens": 64, "vocab_size": 384}
    served = ServedModel(open_checkpoint(str(chain_model.folder)), info)
    (job,) = prepare(request_, served, LimitSettings(max_tokens=limit), max_waiting=1).jobs
    assert job.sampling.max_tokens == expected


@pytest.mark.parametrize(("request_", "expected"), [(CHAT, 127), (text(120), 8)])
def test_an_unsaid_limit_is_no_more_than_the_kv_cache_holds(chain_model, request_: GenerationRequest, expected):
    """vllm-project/vllm#39734."""
    info = {"model": "m", "max_length": 512, "kv_tokens": 128, "vocab_size": 384}
    served = ServedModel(open_checkpoint(str(chain_model.folder)), info)
    (job,) = prepare(request_, served, LimitSettings(), max_waiting=1).jobs
    assert job.sampling.max_tokens == expected


@pytest.mark.parametrize(
    ("servers", "keys", "expected"),
    [
        (None, 8, "the limit of this API key is 8"),
        (9, 8, "the limit of this API key is 8"),
        (8, 9, "the limit of this server is 8"),
        (8, None, "the limit of this server is 8"),
    ],
)
def test_a_refusal_says_whose_limit_it_is(chain_model, servers, keys, expected):
    info = {"model": "m", "max_length": 40, "kv_tokens": 64, "vocab_size": 384}
    served = ServedModel(open_checkpoint(str(chain_model.folder)), info)
    asked = CompletionRequest.model_validate({"prompt": [5], "max_tokens": 20})
    identity = Identity(tenant="t", key_id="k", limits=KeyLimits(max_tokens=keys))
    with pytest.raises(ApiError, match=expected):
        prepare(asked, served, LimitSettings(max_tokens=servers), max_waiting=1, identity=identity)
