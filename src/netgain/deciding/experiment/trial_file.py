"""Every measured request of an experiment as one JSON line, so that its verdict can be computed again."""

from pathlib import Path

import msgspec

from netgain.deciding.experiment.conduct import Trial
from netgain.errors import UsageError


def write_records(path: Path, trial: Trial) -> None:
    """Raises UsageError when the file cannot be written."""
    encoder = msgspec.json.Encoder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for seen in trial.observations:
                file.write(encoder.encode(seen) + b"\n")
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name another folder with --output") from error
