"""The simulator is the real scheduler, pool and loop with another executor: nobody else may ask which one is running."""

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src/netgain"
# The simulated executor itself, and the one place that constructs executors.
EXECUTOR = PACKAGE / "serving/runtime/simulated_executor.py"
BUILDER = PACKAGE / "serving/runtime/build.py"
WORD = "simulat"


def _conditions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every expression on whose value control depends, and every comparison wherever it stands."""
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
                yield test
            case ast.Compare() | ast.match_case(pattern=_):
                yield node.pattern if isinstance(node, ast.match_case) else node
                if isinstance(node, ast.match_case) and node.guard is not None:
                    yield node.guard
            case ast.Match(subject=subject):
                yield subject
            case ast.comprehension(ifs=tests):
                yield from tests
            case ast.BoolOp(values=values):
                yield from values
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" | "hasattr" | "getattr")):
                yield node
            case ast.ExceptHandler(type=ast.expr() as caught):
                yield caught
            case ast.Subscript(value=ast.Dict() as table):
                yield table


def _asks(condition: ast.AST) -> bool:
    for node in ast.walk(condition):
        match node:
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.keyword(arg=str(text)):
                if WORD in text.lower():
                    return True
            case ast.Constant(value=str(text)):
                if WORD in text.lower():
                    return True
    return False


def _branches(source: str) -> set[int]:
    """Lines where control depends on whether something is simulated."""
    return {
        condition.lineno
        for condition in _conditions(ast.parse(source))
        if isinstance(condition, ast.expr | ast.pattern) and _asks(condition)
    }


def test_no_module_outside_the_executors_branches_on_simulated() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in (EXECUTOR, BUILDER)
        for line in sorted(_branches(path.read_text()))
    ]
    assert found == []


def test_the_builder_chooses_the_executor_in_one_place() -> None:
    if BUILDER.exists():
        assert len(_branches(BUILDER.read_text())) <= 1


@pytest.mark.parametrize(
    "source",
    [
        "if simulated: pass",
        "if not self.config.simulated: pass",
        "x = 1 if kind == 'simulated' else 2",
        "while clock.is_simulated(): pass",
        "match kind:\n case 'simulated': pass",
        "match simulation:\n case None: pass",
        "y = kind != 'simulated'",
        "if isinstance(executor, SimulatedExecutor): pass",
        "z = isinstance(executor, SimulatedExecutor)",
        "rows = [r for r in rows if not r.simulated]",
        "z = executor.simulated and 1",
        "assert not simulated",
        "z = {'torch': 1, 'simulated': 2}[kind]",
    ],
)
def test_each_way_of_asking_is_found(source: str) -> None:
    assert _branches(textwrap.dedent(source))


@pytest.mark.parametrize(
    "source",
    [
        "executor = SimulatedExecutor(costs)",
        "kind: Literal['torch', 'simulated'] = 'torch'",
        "if ready: report('simulated')",
        '"""A simulated clock."""',
    ],
)
def test_naming_it_without_asking_is_allowed(source: str) -> None:
    assert not _branches(source)
