"""Which readers of generated text there are, and which one a model needs."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from netgain.serving.api.parsing import reasoning, tools
from netgain.serving.api.parsing.call import mistral_id, openai_id
from netgain.serving.api.parsing.parts import OutputParser, PlainParser
from netgain.serving.api.parsing.reasoning import ReasoningForm, ReasoningParser
from netgain.serving.api.parsing.tools import ToolForm, ToolParser
from netgain.serving.model.template import ChatTemplate
from netgain.serving.model.tokenizer import Tokenizer

# Where a model's template or vocabulary spells several of these markers, the first one here counts.
TOOL_FORMS: Mapping[str, ToolForm] = MappingProxyType(
    {"hermes": tools.HERMES, "mistral": tools.MISTRAL, "llama3_json": tools.LLAMA3_JSON}
)
REASONING_FORMS: Mapping[str, ReasoningForm] = MappingProxyType(
    {"think": reasoning.THINK, "mistral": reasoning.MISTRAL}
)

AUTO, NONE = "auto", "none"
_TAIL_TOKENS = 16  # a prompt that opens the thoughts ends with the tag and white space


@dataclass(frozen=True)
class OutputFormat:
    """How one model writes tool calls and reasoning; None: it does not, as far as the server reads."""

    tools: ToolForm | None = None
    reasoning: ReasoningForm | None = None

    def keep(self, tools: bool) -> frozenset[str]:
        """Control tokens that must stay in the text for `parser(tools=tools, ...)`; see Detokenizer."""
        spellings: frozenset[str] = frozenset() if self.reasoning is None else self.reasoning.markers
        return spellings | self.tools.markers if tools and self.tools is not None else spellings

    def parser(self, *, tools: Collection[str], inside_reasoning: bool, source: random.Random) -> OutputParser:
        """A reader for one choice. `tools` may be called: a call of anything else is content; `source` draws the ids."""
        parser: OutputParser = PlainParser()
        if tools and self.tools is not None:
            draw = mistral_id if self.tools is TOOL_FORMS["mistral"] else openai_id
            parser = ToolParser(self.tools, lambda: draw(source), tools)
        return parser if self.reasoning is None else ReasoningParser(self.reasoning, parser, inside_reasoning)

    def opens_reasoning(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the tag that opens the thoughts, so that the answer begins inside them."""
        if self.reasoning is None:
            return False
        return tokenizer.decode(prompt[-_TAIL_TOKENS:], keep_control=True).rstrip().endswith(self.reasoning.opener)


def output_format(
    tool_parser: str, reasoning_parser: str, tokenizer: Tokenizer, template: ChatTemplate | None
) -> OutputFormat:
    """By the settings api.tool_parser and api.reasoning_parser: a name, "none", or "auto" for the model's own markers."""
    tool_name = choose_tools(tokenizer, template) if tool_parser == AUTO else tool_parser
    reasoning_name = choose_reasoning(tokenizer, template) if reasoning_parser == AUTO else reasoning_parser
    return OutputFormat(
        None if tool_name == NONE else TOOL_FORMS[tool_name],
        None if reasoning_name == NONE else REASONING_FORMS[reasoning_name],
    )


def choose_tools(tokenizer: Tokenizer, template: ChatTemplate | None) -> str:
    """The form whose marker the template spells, else the vocabulary; "none" when neither does."""
    return _choose({name: form.opener for name, form in TOOL_FORMS.items()}, tokenizer, template)


def choose_reasoning(tokenizer: Tokenizer, template: ChatTemplate | None) -> str:
    """Likewise for reasoning."""
    return _choose({name: form.closer for name, form in REASONING_FORMS.items()}, tokenizer, template)


def _choose(markers: Mapping[str, str], tokenizer: Tokenizer, template: ChatTemplate | None) -> str:
    source = "" if template is None else template.source
    in_template = (name for name, marker in markers.items() if marker in source)
    in_vocabulary = (name for name, marker in markers.items() if marker in tokenizer.markers)
    return next(in_template, None) or next(in_vocabulary, NONE)
