"""The scripted server for the tests of this room, loaded from its own file."""

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("scripted_server", Path(__file__).with_name("scripted_server.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules["scripted_server"] = _MODULE  # so that tests may write `from scripted_server import ...`
_SPEC.loader.exec_module(_MODULE)
