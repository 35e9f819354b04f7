"""The probe measures this machine, says what it could not measure and why, and notices others at work meanwhile."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import msgspec
import pytest

from netgain.cost.machine import MachineProbe, this_machine
from netgain.doctor import probe as probing
from netgain.doctor.finding import State
from netgain.doctor.probed import findings_of
from netgain.errors import Unavailable
from netgain.serving.model.kernels.build import load_machine_probe
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]


def test_the_compiled_probe_measures_reads_and_messages(requires_compiler: list[str], tmp_path: Path) -> None:
    program = load_machine_probe(requires_compiler, tmp_path)
    lines = probing._lines([str(program), str(32 << 20), "2", "3"], 60)
    found = {name: value for line in lines for name, value in line.items() if name != "read"}
    reads = [line["read"] for line in lines if "read" in line]
    assert [read["threads"] for read in reads] == [1, 2]
    assert all(1e8 < read["bytes_per_s"] < 1e13 for read in reads)
    for name in ("round_trip", "wake_up"):
        assert 0 < found[name]["median_s"] <= found[name]["p99_s"] < 10
    built = program.stat().st_mtime_ns
    assert load_machine_probe(requires_compiler, tmp_path).stat().st_mtime_ns == built, "built once"


def test_a_probe_that_fails_is_named_by_its_last_words() -> None:
    with pytest.raises(Unavailable, match="out of luck"):
        probing._lines([sys.executable, "-c", "raise SystemExit('out of luck')"], 30)
    with pytest.raises(Unavailable, match="cannot be started"):
        probing._lines(["/no/such/program"], 30)
    with pytest.raises(Unavailable, match="no result within"):
        probing._lines([sys.executable, "-c", "import time; time.sleep(30)"], 0.2)


def test_without_compiler_and_torch_it_is_numpy_and_says_what_is_missing(tmp_path: Path, free_port: int) -> None:
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not entry.name.startswith("torch"):
            (tmp_path / "packages").mkdir(exist_ok=True)
            (tmp_path / "packages" / entry.name).symlink_to(entry)
    environment = os.environ | {
        "CXX": "/no/such/compiler",
        "NETGAIN_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(tmp_path / "packages"))),
    }

    def doctor(*more: str) -> dict[str, object]:
        arguments = ["-S", "-m", "netgain.cli.main", "doctor", "--json", "--port", str(free_port), "--wait", "0.1"]
        done = subprocess.run(
            [sys.executable, *arguments, *more], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.stdout, done.stderr
        return dict(json.loads(done.stdout))

    before = doctor("--no-probe")
    assert before["probe"] is None
    found = doctor()
    taken = msgspec.convert(found["probe"], MachineProbe)
    assert [(read.threads, read.by) for read in taken.reads] == [(1, "numpy")]
    assert taken.reads[0].bytes_per_s > 1e8
    assert taken.machine == this_machine()
    assert (taken.products, taken.round_trip) == ((), None)
    assert any("/no/such/compiler" in reason for reason in taken.missing)
    assert any("matrix products" in reason and "torch" in reason for reason in taken.missing)
    assert doctor("--no-probe")["probe"] == found["probe"], "kept, with its date"


def test_others_at_work_are_noticed() -> None:
    watch = probing._Watch()
    if watch.read()[0] is None:
        pytest.skip("the system does not tell what its processes use")
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        wait_for(lambda: (watch.read()[0] or 0.0) > probing.BUSY_CORES / 2)
        _, stolen = watch.read()
    finally:
        other.kill()
        other.wait()
    assert stolen is None or stolen >= 0


def test_a_disturbed_probe_is_a_note_with_its_mend() -> None:
    taken = MachineProbe(
        machine=this_machine(), taken="2026-01-02T00:00:00+00:00", foreign_cores=1.5, stolen=0.1, busy=True
    )
    quiet = msgspec.structs.replace(taken, taken="2026-01-01T00:00:00+00:00", busy=False)
    (note,) = findings_of(taken, quiet)
    assert note.state is State.NOTE
    assert "lower than" in (note.means or "")
    assert quiet.taken in (note.means or "")
    assert note.mend
    (ok,) = findings_of(quiet, quiet)
    assert ok.state is State.OK


def test_no_torch_is_loaded_by_the_doctor() -> None:
    program = "import sys, netgain.cli.doctor; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
