"""Nothing that netgain reads from disks, servers or sockets can run code: no pickle, and nothing that is one inside."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "netgain"
MODULES = frozenset(
    {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
)


def offences(source: str) -> Iterator[str]:
    """What in a module can turn bytes into calls."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if found := {one.name.partition(".")[0] for one in names} & MODULES:
                yield f"line {node.lineno} imports {', '.join(found)}"
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield f"line {node.lineno} imports {module}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load"), keywords=keywords) if not any(
                one.arg == "weights_only" and isinstance(one.value, ast.Constant) and one.value.value is True
                for one in keywords
            ):
                yield f"line {node.lineno} loads tensors without weights_only=True"
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                yield f"line {node.value.lineno} allows pickles in an array"
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="yaml"), attr=("load" | "unsafe_load" | "full_load") as name)
            ):
                yield f"line {node.lineno} calls yaml.{name}, which makes objects"


def test_no_module_reads_a_pickle() -> None:
    """LMCache/LMCache#926: KV from a remote cache was unpickled, so whoever could write there could run code."""
    found = {str(path): list(offences(path.read_text())) for path in PACKAGE.rglob("*.py")}
    assert {path: told for path, told in found.items() if told} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import os, marshal",
        "from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, Loader=yaml.Loader)",
    ],
)
def test_each_way_to_do_so_would_be_found(source: str) -> None:
    assert list(offences(source))
