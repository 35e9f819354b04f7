"""An agent framework, unmodified, works against this server: pydantic-ai calls a tool and answers from its result."""

import pytest

pytest.importorskip("pydantic_ai")

from pydantic_ai import Agent, RunContext
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

SETTINGS = {"temperature": 0.0, "max_tokens": 200}


@pytest.fixture
def model(server) -> OpenAIChatModel:
    return OpenAIChatModel("chain", provider=OpenAIProvider(base_url=f"{server.url}/v1", api_key="none"))


async def test_an_answer_whole_and_streamed(model):
    agent = Agent(model, model_settings=SETTINGS)
    answer = await agent.run("s")
    assert answer.output == "short answer"
    assert answer.usage.output_tokens == 3
    async with agent.run_stream("n") as stream:
        assert await stream.get_output() == "one green left over"


async def test_a_tool_is_called_and_its_result_answered_from(model):
    agent = Agent(model, model_settings=SETTINGS)
    asked: list[str] = []

    @agent.tool
    def weather(context: RunContext[None], city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "the weather is s"

    answer = await agent.run("t")
    assert asked == ["Rome"]
    assert answer.output == "short answer"
    assert answer.usage.tool_calls == 1


async def test_an_output_type_is_forced_through_a_tool(model):
    """The framework asks with tool_choice "required", whatever the model would rather say."""
    agent = Agent(model, output_type=bool, model_settings={**SETTINGS, "parallel_tool_calls": False})
    answer = await agent.run("s")
    assert isinstance(answer.output, bool)
