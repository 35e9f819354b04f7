"""Every benchmark starts: its modules import, and its program says how it is used."""

import ast
import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
OF_OTHERS = {"benchmarks.peers.openvino_server"}  # run by the Python in which OpenVINO is installed

# In one process, which imports torch once: as `python -m NAME --help`, the module's own `main` on its own command line.
EACH = """
import contextlib, importlib, io, json, sys
folder, names, programs = json.loads(sys.argv[1])
sys.path.insert(0, folder)
found = {}
for name in names:
    module = importlib.import_module(name)
    if name not in programs:
        continue
    sys.argv[:] = [name, "--help"]
    said, code = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(said):
            module.main()
    except SystemExit as ended:
        code = ended.code
    found[name] = [code, said.getvalue()]
print(json.dumps(found))
"""


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts): path
        for path in sorted(FOLDER.rglob("*.py"))
        if path.name != "__init__.py"
    }


def is_program(path: Path) -> bool:
    """Asked for by its name: not those that other programs start."""
    guard = any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in ast.parse(path.read_text()).body
    )
    return path.name == "__main__.py" or (guard and not path.name.startswith("_"))


def test_every_module_imports_and_every_program_says_how_it_is_used():
    all_of_them = {name: path for name, path in modules().items() if name not in OF_OTHERS}
    programs = [name for name, path in all_of_them.items() if is_program(path)]
    assert {"benchmarks.verdicts", "benchmarks.decide", "benchmarks.drafts", "benchmarks.soak.__main__"} <= set(
        programs
    )
    told = json.dumps([str(FOLDER.parent), list(all_of_them), programs])
    done = subprocess.run([sys.executable, "-c", EACH, told], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == programs
    for name, (code, said) in found.items():
        assert code == 0, name
        assert said.startswith("usage:"), name
        assert "--json" in said, name
