"""The parts of a launch are read off the server's own log."""

import time
from datetime import datetime

import pytest

from benchmarks.start import logged_s
from netgain.errors import Unavailable


def test_the_engine_is_ready_when_its_log_line_says_so() -> None:
    stamp = datetime.fromtimestamp(1_700_000_003.25).strftime("%Y-%m-%d %H:%M:%S,%f")[:23]
    log = f"a line before\n{stamp} netgain.fleet: engine-0 is ready (pid 7)\nserving at http://127.0.0.1:1/v1\n"
    assert logged_s(log, 1_700_000_000.0) == pytest.approx(3.25)


def test_a_log_without_that_line_is_an_error_and_no_zero() -> None:
    with pytest.raises(Unavailable, match="does not say when its engine was ready"):
        logged_s("out of memory", time.time())
