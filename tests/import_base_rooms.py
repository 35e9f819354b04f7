"""Imports every module of the rooms that must work with the base install, while refusing what only the serve extra brings.

Run by test_base_install.py with the full environment, and by CI with a real base install.
"""

import importlib
import pkgutil
import sys

from netgain.cli.main import SERVE_EXTRA

ROOMS = (
    "netgain.cost",
    "netgain.deciding",
    "netgain.doctor",
    "netgain.ledger",
    "netgain.measuring",
    "netgain.serving.blocks",
    "netgain.serving.engine",
    "netgain.serving.speculation",
    "netgain.serving.tiers",
)
# These say which extra they need, or are part of one that does.
OF_EXTRAS = frozenset({f"netgain.serving.tiers.{name}" for name in ("bulk", "objects", "remote", "vault", "xaes")})


class NotInBaseInstall:
    """An import finder that knows nothing of the serve extra, whatever is installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in SERVE_EXTRA:
            raise ModuleNotFoundError(f"{name} is not in the base install", name=name)


sys.meta_path.insert(0, NotInBaseInstall())
for room in ROOMS:
    package = importlib.import_module(room)
    for module in pkgutil.walk_packages(package.__path__, room + "."):
        if module.name in OF_EXTRAS:
            continue
        importlib.import_module(module.name)
        print(module.name)
