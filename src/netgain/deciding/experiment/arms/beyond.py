"""What an arm keeps beyond its server: a folder, or a store that runs apart. Made empty before every start, since a start is to
begin cold, and gone afterwards."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from netgain.errors import Unavailable, UsageError
from netgain.secrecy import without_secrets

RESET_TIMEOUT_S = 120.0
_STDERR = 500


class Beyond(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: the arm's own, of which it is told instead of `asked`, in which it lies and which a user would name. `reset`: a
    shell command that empties what runs apart."""

    arm: str
    folder: Path | None = None
    asked: str = ""
    reset: str | None = None

    def begin(self) -> None:
        """Raises UsageError where the folder cannot be made, Unavailable where the command fails."""
        if self.folder is not None:
            self.end()
            try:
                self.folder.mkdir(parents=True)
            except OSError as error:
                raise UsageError(
                    f"cannot make {self.folder} for the tier of the {self.arm} arm ({error.strerror or error}); name another "
                    f"folder"
                ) from error
        if self.reset is not None:
            _run(self.reset, self.arm)

    def end(self) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def told(self, flags: Sequence[str]) -> tuple[str, ...]:
        """The flags with the arm's own folder in the place of the user's."""
        own = self.folder
        return tuple(flags) if own is None else tuple(flag.replace(self.asked, str(own)) for flag in flags)

    def shown(self, words: Sequence[str]) -> tuple[str, ...]:
        """A command line as a user would write it."""
        own = self.folder
        return tuple(words) if own is None else tuple(word.replace(str(own), self.asked) for word in words)


def _run(command: str, arm: str) -> None:
    try:
        done = subprocess.run(
            ("sh", "-c", command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=RESET_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(
            f"the command that empties the tier of the {arm} arm took longer than {RESET_TIMEOUT_S:g} s"
        ) from error
    if done.returncode != 0:
        told = without_secrets(done.stderr.decode(errors="replace").strip()[-_STDERR:]) or "it wrote nothing to stderr"
        raise Unavailable(
            f"the command that empties the tier of the {arm} arm ended with code {done.returncode}: {told}"
        )
