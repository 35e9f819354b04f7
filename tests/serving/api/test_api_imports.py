"""The process that speaks HTTP carries no torch."""

import subprocess
import sys


def test_the_api_process_does_not_import_torch():
    code = "import sys, netgain.cli.serve; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
