"""Jinja as transformers offers it to chat templates, in a sandbox that also bounds time, steps and text, so that neither a
template nor what it is given can hold or fill the server."""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 200_000  # loop rounds and calls
MAX_CHARACTERS = 64_000_000  # made on the way and given out
MAX_SECONDS = 5.0
MAX_INTEGER_BITS = 4096
MAX_WIDTH = 999_999
MAX_SOURCE_CHARACTERS = 1 << 20

_GUARDS = "\ufdd0-\ufdef\ue000-\uf8ff"  # see tokenizer.guard_for
_WIDTH = re.compile(r"\d{7,}")


@dataclass
class _Budget:
    """What one rendering has used."""

    deadline_s: float
    steps: int = 0
    characters: int = 0

    def step(self, characters: int = 0) -> None:
        self.steps += 1
        self.spend(characters)
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS} steps")
        if time.monotonic() > self.deadline_s:
            raise SecurityError(f"it takes longer than {MAX_SECONDS:g} s")

    def spend(self, characters: int) -> None:
        self.characters += characters
        if self.characters > MAX_CHARACTERS:
            raise SecurityError(f"it makes more than {MAX_CHARACTERS} characters of text")


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of chat templates; several threads may render at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self._rendering = threading.local()
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation], finalize=self._given_out
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: self._bounded(name, of) for name, of in self.filters.items()}
        self.filters |= {"_rounds": self._rounds, "_joined": self._joined}
        del self.globals["lipsum"]  # makes as much text as it is asked for
        self.globals.update(raise_exception=_refuse, strftime_now=_now)

    def run(self, template: Template, variables: Mapping[str, Any]) -> str:
        """The whole text. Raises TemplateError at a bound, and whatever the template raises."""
        budget = self._rendering.budget = _Budget(time.monotonic() + MAX_SECONDS)
        parts = []
        for part in template.generate(dict(variables)):
            budget.spend(len(part))
            parts.append(part)
        return "".join(parts)

    def call(self, context: Context, called: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        self._budget.step()
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str):
            self._budget.spend(_growth(called.__name__, owner, (*args, *options.values())))
        result = super().call(context, called, *args, **options)
        if isinstance(result, str):
            self._budget.spend(len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, count in ((left, right), (right, left)):
                if isinstance(many, str | list | tuple) and isinstance(count, int):
                    self._budget.spend(_size(many) * max(count, 0))
        elif operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError(f"the power {right} is too large")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and result.bit_length() > MAX_INTEGER_BITS:
            raise SecurityError(f"a number has more than {MAX_INTEGER_BITS} bits")
        if isinstance(result, str | list | tuple):
            self._budget.spend(_size(result))
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        formatting = super().wrap_str_format(value)
        if formatting is None:
            return None

        def checked(*args: Any, **options: Any) -> str:
            more = [item for arg in (*args, options) for item in (arg.values() if isinstance(arg, Mapping) else [arg])]
            _check_format(value.__self__, more)
            return formatting(*args, **options)

        return checked

    def _generate(self, source: nodes.Template, *args: Any, **options: Any) -> str:
        return super()._generate(_Counting().visit(source), *args, **options)

    @property
    def _budget(self) -> _Budget:
        budget: _Budget | None = getattr(self._rendering, "budget", None)
        return budget or _Budget(float("inf"))  # while a template is compiled

    def _bounded(self, name: str, filtering: Callable[..., Any]) -> Callable[..., Any]:
        """The same filter, refusing to make text without end. It may get a context or environment before the value."""
        before = int(hasattr(filtering, "jinja_pass_arg"))

        @functools.wraps(filtering)
        def checked(*args: Any, **options: Any) -> Any:
            more = (*args[before + 1 :], *options.values())
            self._budget.spend(_growth(name, args[before], more))
            if name == "format":
                _check_format(args[before], more)
            return filtering(*args, **options)

        return checked

    def _rounds(self, items: Iterable[Any], characters: int) -> Iterator[Any]:
        budget = self._budget
        for item in items:
            budget.step(characters)
            yield item

    def _joined(self, items: Sequence[Any]) -> str:
        parts = [str(item) for item in items]
        self._budget.spend(sum(map(len, parts)))
        return "".join(parts)

    def _given_out(self, value: Any) -> Any:
        if isinstance(value, str):
            self._budget.spend(len(value))
        return value


class _Counting(NodeTransformer):
    """Passes what is looped over, and what `~` joins, through filters that count it."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        literals = [len(data.data) for data in node.find_all(nodes.TemplateData)]
        literals += [len(data.value) for data in node.find_all(nodes.Const) if isinstance(data.value, str)]
        self.generic_visit(node)
        node.iter = _filtered("_rounds", node.iter, nodes.Const(sum(literals), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered("_joined", nodes.List(node.nodes, lineno=node.lineno))


def _filtered(name: str, value: nodes.Expr, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, list(args), [], None, None, lineno=value.lineno)


class _Generation(Extension):
    """`{% generation %}` marks an assistant's turn for training; in a prompt it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _size(value: Sequence[Any]) -> int:
    """In characters; an item of a list weighs as eight."""
    return len(value) if isinstance(value, str) else 8 * len(value)


def _growth(name: str, value: Any, args: Sequence[Any]) -> int:
    """Characters or items that a method or filter of this name may add to its value."""
    numbers = [abs(arg) for arg in args if isinstance(arg, int)]
    match name:
        case "replace" if isinstance(value, str) and len(args) >= 2:
            return value.count(str(args[0])) * len(str(args[1]))
        case "join":
            separator, items = (value, args[0]) if isinstance(value, str) and args else (args[0] if args else "", value)
            return len(str(separator)) * (len(items) if isinstance(items, Sized) else 0)
        case "center" | "ljust" | "rjust" | "zfill" | "expandtabs" | "indent" | "batch" | "slice" | "tojson":
            return max(numbers, default=0) * (1 + (str(value).count("\n") + str(value).count("\t")))
    return 0


def _check_format(text: Any, args: Iterable[Any]) -> None:
    """A width stands in the text, or is a number among what is put into it (`%*d`, `{:{}}`)."""
    nested = "*" in str(text) or re.search(r"\{[^}]*\{", str(text)) is not None
    if _WIDTH.search(str(text)) or (nested and any(isinstance(arg, int) and abs(arg) > MAX_WIDTH for arg in args)):
        raise SecurityError("a width is too large")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As chat templates expect it: Jinja's own filter escapes for HTML. Guards are never escaped, they must vanish."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return (
        re.sub(f"[^\x00-\x7f{_GUARDS}]+", lambda match: json.dumps(match.group())[1:-1], text) if ensure_ascii else text
    )


def _refuse(message: Any = "it gives no reason") -> NoReturn:
    raise TemplateError(str(message))


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
