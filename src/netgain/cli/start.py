"""The console script: Ctrl-C while the command line is still being imported ends it as quietly as later."""

import contextlib
import importlib
import signal
import sys


def main() -> None:
    """Entry point. Raises SystemExit."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from netgain.cli import main as command_line  # what takes time to import

    if len(sys.argv) > 1 and (command := command_line.COMMANDS.get(sys.argv[1])) is not None:
        with contextlib.suppress(Exception):  # `run` meets it again, and explains it
            importlib.import_module(command.target.partition(":")[0])
    signal.signal(signal.SIGINT, before)
    command_line.main()


if __name__ == "__main__":
    main()
