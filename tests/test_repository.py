"""What the repository promises about itself: the map is true, links resolve, files stay small, nothing private leaks."""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src/netgain"
IGNORED = {
    ".git",
    ".hypothesis",
    ".schemathesis",
    ".venv",
    "build",
    "dist",
    "netgain-measurements",
    "netgain-recordings",
    "netgain-reports",
    "shared",
}
TEXT = {
    ".cfg",
    ".cpp",
    ".css",
    ".h",
    ".html",
    ".j2",
    ".js",
    ".json",
    ".md",
    ".py",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    "",
}


def _files(*suffixes: str) -> Iterator[Path]:
    """Every file of the project with one of `suffixes`, without what tools and builds leave behind."""
    for folder, inside, names in os.walk(ROOT):
        inside[:] = sorted(
            name for name in inside if name not in IGNORED and not name.endswith((".egg-info", "_cache", "__"))
        )
        yield from (
            Path(folder, name) for name in sorted(names) if Path(name).suffix in suffixes and name not in IGNORED
        )


def _rooms_on_disk() -> set[str]:
    """`ledger/`, `serving/engine/` ...: the doors, and the rooms directly inside doors that have any."""
    doors = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/__init__.py")}
    rooms = {path.parent.relative_to(PACKAGE) for path in PACKAGE.glob("*/*/__init__.py")}
    doors_with_rooms = {room.parent for room in rooms}
    return {f"{path}/" for path in (doors - doors_with_rooms) | rooms}


def test_architecture_lists_exactly_the_rooms_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    listed = re.findall(r"^\| `([a-z_/]+/)` \|", text, flags=re.MULTILINE)
    assert len(listed) == len(set(listed)), "a room is listed twice"
    assert set(listed) == _rooms_on_disk()


def test_every_room_has_its_place_in_the_import_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = {layer.strip("()").removeprefix("netgain.").replace(".", "/") + "/" for layer in layers}
    assert _rooms_on_disk() <= placed


def test_the_map_lists_rooms_in_the_order_in_which_they_may_be_imported() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    placed = [layer.strip("()").removeprefix("netgain.").replace(".", "/") + "/" for layer in reversed(layers)]
    listed = re.findall(r"^\| `([a-z_/]+/)` \|", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.MULTILINE)
    assert listed == [room for room in placed if room in listed]


def test_architecture_names_only_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.(?:py|cpp))`", text))
    missing = {name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()}
    assert not missing


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_links_in_documents_resolve() -> None:
    broken = []
    for document in _files(".md"):
        text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (document.parent / name).resolve() if name else document
            if not path.exists():
                broken.append(f"{document.relative_to(ROOT)}: {target}")
            elif anchor and anchor not in map(_anchor, re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)):
                broken.append(f"{document.relative_to(ROOT)}: no heading for {target}")
    assert not broken


def test_every_document_is_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    documents = [path for path in _files(".md") if path.parent == ROOT / "docs" and path.name != "README.md"]
    assert [path.name for path in documents if f"({path.name})" not in index] == []


def test_source_files_stay_small() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 350} == {}


def test_every_source_file_says_why_it_exists() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py" and not path.read_text().startswith('"""')
    ]
    assert silent == []


def test_cores_are_counted_in_one_place() -> None:
    """Affinity is not known to every system, so whoever asks for it himself fails on some."""
    asking = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if "affinity(" in path.read_text()}
    assert asking == {"cost/machine.py"}


def test_package_markers_are_empty() -> None:
    """Importing one room must not import another through a package's `__init__`."""
    assert [str(path) for path in PACKAGE.rglob("__init__.py") if path.read_text().strip()] == []


def test_readme_commands_are_make_targets() -> None:
    commands = re.findall(r"^make ([a-z]+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert commands[:2] == ["decide", "test"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(commands) <= targets


def test_netgain_commands_in_documents_exist() -> None:
    from netgain.cli.main import COMMANDS

    for document in _files(".md"):
        blocks = "".join(re.findall(r"```.*?```", document.read_text(), flags=re.DOTALL))
        named = re.findall(r"^(?:\$ )?netgain ([a-z]+)", blocks, flags=re.MULTILINE)
        assert set(named) <= set(COMMANDS), f"{document.relative_to(ROOT)} shows a command that does not exist"


@pytest.mark.parametrize(
    "private",
    [
        r"/(?:work/(?:main|shared|\.library)|root/)",  # places on somebody's machine
        r"(?i)\bissue #?\d+\b",  # a tracker that readers do not have; owner/repo#number is fine
        r"\bTODO\b|\bFIXME\b|\bXXX\b",
    ],
)
def test_nothing_private_or_unfinished_is_left_in_text(private: str) -> None:
    found = []
    for path in _files(*TEXT):
        if path == Path(__file__).resolve():
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if re.search(private, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_ci_script_is_executable_bash() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=10)
