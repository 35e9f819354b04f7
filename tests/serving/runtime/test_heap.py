"""A loaded engine holds what it needs, not what loading needed."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys, psutil
from netgain.ledger.clock import WallClock
from netgain.serving.runtime.build import build_engine
from netgain.serving.runtime.config import EngineConfig

built = build_engine(
    EngineConfig.model_validate({"model": {"source": sys.argv[1], "dtype": "bf16"}, "cache": {"kv_tokens": 512}}), WallClock()
)
before = psutil.Process().memory_info().rss
ctypes.CDLL(None).malloc_trim(0)
print(before - psutil.Process().memory_info().rss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_what_loading_freed_is_given_back(default_model_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, default_model_path], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 40 << 20
