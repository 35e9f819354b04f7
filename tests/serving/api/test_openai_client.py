"""The official client works against this server as against OpenAI's."""

import asyncio
from collections.abc import Iterator

import pytest

openai = pytest.importorskip("openai")


@pytest.fixture
def client(server) -> Iterator["openai.OpenAI"]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as made:
        yield made


def test_chat(client):
    answer = client.chat.completions.create(model="chain", messages=[{"role": "user", "content": "s"}], temperature=0)
    assert answer.choices[0].message.content == "short answer"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream_with_usage(client):
    stream = client.chat.completions.create(
        model="chain",
        messages=[{"role": "system", "content": "x"}, {"role": "user", "content": "n"}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "one green left over"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.total_tokens == 6


def test_completions_whole_and_streamed(client):
    whole = client.completions.create(model="chain", prompt="s", temperature=0)
    assert whole.choices[0].text == "short answer"
    streamed = client.completions.create(model="chain", prompt="s", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "short answer"


def test_models(client):
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == ("chain", "netgain")
    assert client.models.retrieve("chain").id == "chain"


def test_errors_are_the_clients_own_types(client):
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "s"}])
    with pytest.raises(openai.BadRequestError, match="temperature") as caught:
        client.completions.create(model="chain", prompt="s", temperature=-1)
    assert caught.value.param == "temperature"


async def test_the_async_client_can_leave_a_stream_early(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
        stream = await client.completions.create(model="chain", prompt="l", max_tokens=2000, stream=True, temperature=0)
        async for chunk in stream:
            if chunk.choices[0].text:
                break
        await stream.close()
        answer = await client.completions.create(model="chain", prompt="s", temperature=0)
    assert answer.choices[0].text == "short answer"


def test_logprobs_come_as_the_clients_types(client):
    messages = [{"role": "user", "content": "s"}]
    answer = client.chat.completions.create(
        model="chain", messages=messages, temperature=0, logprobs=True, top_logprobs=3
    )
    first = answer.choices[0].logprobs.content[0]
    assert (first.token, len(first.top_logprobs)) == ("short ", 3)
    with client.chat.completions.stream(
        model="chain", messages=messages, temperature=0, logprobs=True, top_logprobs=3
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].logprobs.content == answer.choices[0].logprobs.content
    text = client.completions.create(model="chain", prompt="s", temperature=0, logprobs=2)
    assert text.choices[0].logprobs.tokens[:2] == ["short ", "answer"]


def test_several_choices_are_put_together_from_one_stream(client):
    with client.chat.completions.stream(
        model="chain", messages=[{"role": "user", "content": "n"}], temperature=0, n=3
    ) as stream:
        final = stream.get_final_completion()
    assert [choice.message.content for choice in final.choices] == ["one green left over"] * 3


def test_the_fingerprint_stays_the_same(client):
    answers = [client.completions.create(model="chain", prompt="s", temperature=0) for _ in range(2)]
    assert len({answer.system_fingerprint for answer in answers}) == 1
    assert answers[0].system_fingerprint.startswith("fp_")


async def test_the_async_client_streams_while_others_ask(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:

        async def streamed(text: str) -> str:
            stream = await client.chat.completions.create(
                model="chain", messages=[{"role": "user", "content": text}], temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*map(streamed, "snus")) == [
            "short answer",
            "one green left over",
            "ď가龜🫠",
            "short answer",
        ]
