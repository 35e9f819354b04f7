"""Building the compiled kernels: cached, safe between processes, and clear when it cannot be done."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from netgain.errors import Unavailable
from netgain.serving.model.kernels.build import cache_directory, find_compiler, library_path, load_library
from netgain.serving.model.kernels.compiled import CompiledKernels

BUILD = """
import sys
from pathlib import Path
from netgain.serving.model.kernels.compiled import CompiledKernels
print(CompiledKernels(2, sys.argv[2:], Path(sys.argv[1])).name)
"""

# In a process of its own, and compared without torch: what else a process has running (threads that hold
# locks, OpenMP's pool, which does not outlive a fork) may hang a child of it, whatever the kernels do.
FORK = """
import os, sys, torch
from netgain.serving.model.kernels.compiled import CompiledKernels
kernels = CompiledKernels(2, sys.argv[1:])
x = torch.full((64, 2048), 0.5)
expected = kernels.silu_mul(x).numpy().tobytes()
child = os.fork()
if child == 0:
    os._exit(0 if kernels.silu_mul(x).numpy().tobytes() == expected else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def quick_compiler(requires_compiler: list[str], tmp_path: Path) -> list[str]:
    """The compiler without optimisation."""
    return script(tmp_path / "quick", f'exec {shlex.join(requires_compiler)} "$@" -O0\n')


def script(path: Path, body: str) -> list[str]:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return [str(path)]


def test_two_processes_may_build_at_once_and_the_third_builds_nothing(
    quick_compiler: list[str], empty_cache: Path
) -> None:
    command = [sys.executable, "-c", BUILD, str(empty_cache), *quick_compiler]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    names = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(names) == 1
    [library] = empty_cache.iterdir()
    built = library.stat().st_mtime_ns
    load_library(quick_compiler, empty_cache)
    assert [path.stat().st_mtime_ns for path in empty_cache.iterdir()] == [built]


def test_a_damaged_library_is_built_again(quick_compiler: list[str], empty_cache: Path) -> None:
    """Cut in the middle, a library loads, and ends its process once a missing page is touched."""
    load_library(quick_compiler, empty_cache)
    [library] = empty_cache.iterdir()
    whole = library.read_bytes()
    library.unlink()  # the loaded file must stay whole
    library.write_bytes(whole[: len(whole) // 2])
    kernels = CompiledKernels(1, quick_compiler, empty_cache)
    assert torch.equal(kernels.silu_mul(torch.zeros(1, 16)), torch.zeros(1, 8))


def test_a_build_without_vector_instructions_gives_the_same_quantised_bits(
    portable: CompiledKernels, compiled: CompiledKernels, make_matrix: Callable
) -> None:
    x = torch.randn(5, 96)
    for kind in ("q4_0", "q4_1", "q8_0"):
        matrix = make_matrix(kind, 37, 96)
        assert torch.equal(portable.linear(x, matrix.pack(portable)), compiled.linear(x, matrix.pack(compiled)))
    for size in (1e-7, 1e-4, 1.0, 1e4):  # scales of all kinds that float16 has
        values = torch.randn(99, 32, generator=torch.Generator().manual_seed(1)) * size
        assert torch.equal(portable.quantise_q4_1(values), compiled.quantise_q4_1(values))
    halves = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.float16).view(-1, 64)
    every = portable.embed(torch.arange(len(halves)), portable.pack_dense(halves, torch.float16))
    assert torch.equal(every.nan_to_num(7.0), halves.float().nan_to_num(7.0))
    for kind in ("float32", "bfloat16", "float16", "q4_0 x fp32", "q4_1 x fp32", "q8_0 x fp32"):
        matrix, x = make_matrix(kind, 37, 96), torch.randn(5, 96)
        assert torch.allclose(
            portable.linear(x, matrix.pack(portable)), compiled.linear(x, matrix.pack(compiled)), atol=1e-4
        )


def test_a_failing_compiler_is_shown_with_the_end_of_its_output(tmp_path: Path, empty_cache: Path) -> None:
    compiler = script(
        tmp_path / "cc", '[ "$1" = --version ] && echo 1 && exit 0\necho "fatal: out of ideas" >&2; exit 3\n'
    )
    with pytest.raises(Unavailable, match=r"(?s)failed with status 3.*out of ideas"):
        load_library(compiler, empty_cache)
    assert not list(empty_cache.iterdir())


def test_a_hanging_compiler_is_given_up(tmp_path: Path, empty_cache: Path) -> None:
    compiler = script(tmp_path / "cc", '[ "$1" = --version ] && echo 1 && exit 0\nexec sleep 30\n')
    with pytest.raises(Unavailable, match=r"within 0\.2 s"):
        load_library(compiler, empty_cache, timeout_s=0.2)


def test_a_missing_compiler_is_named(empty_cache: Path) -> None:
    with pytest.raises(Unavailable, match="no-such-compiler"):
        load_library(["/no-such-compiler"], empty_cache)


def test_a_cache_that_cannot_be_written_is_named(requires_compiler: list[str], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Unavailable, match="NETGAIN_CACHE"):
        load_library(requires_compiler, blocked / "kernels")


def test_cxx_comes_first_and_may_carry_options() -> None:
    assert find_compiler({"CXX": "ccache g++ -g", "PATH": ""}) == ["ccache", "g++", "-g"]


def test_gxx_comes_before_clangxx(tmp_path: Path) -> None:
    script(tmp_path / "clang++", "")
    assert find_compiler({"PATH": str(tmp_path)}) == [str(tmp_path / "clang++")]
    script(tmp_path / "g++", "")
    assert find_compiler({"PATH": str(tmp_path)}) == [str(tmp_path / "g++")]


def test_the_cache_follows_the_environment() -> None:
    assert cache_directory({"NETGAIN_CACHE": "/a"}) == Path("/a/kernels")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/netgain/kernels")
    assert cache_directory({}) == Path.home() / ".cache/netgain/kernels"


def test_a_process_that_forks_keeps_working(requires_compiler: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", FORK, *requires_compiler], timeout=120, check=False)
    assert ended.returncode == 0


def test_what_times_belong_to_changes_with_the_sources(requires_compiler: list[str], compiled: CompiledKernels) -> None:
    """Kept step costs are looked up by it: kernels that became faster with the same output bits are measured again."""
    assert compiled.build == library_path(requires_compiler, cache_directory()).stem
