"""Every measured request of an experiment as one JSON line, so that its verdict can be computed again."""

from pathlib import Path

import msgspec

from netgain.deciding.experiment.conduct import Trial
from netgain.errors import UsageError
from netgain.plain_file import write_whole


def write_records(path: Path, trial: Trial) -> None:
    """Raises UsageError when the file cannot be written."""
    encoder = msgspec.json.Encoder()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, b"".join(encoder.encode(seen) + b"\n" for seen in trial.observations))
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name another folder with --output") from error
