"""One stream without speculation here beside the same in the peers benchmark: a speedup over a slow baseline is worth nothing."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _report
from benchmarks.speculation.arms import NONE
from benchmarks.speculation.cells import PLAIN_CELL, Round

RESULTS = Path(__file__).resolve().parents[1] / "results"
FORMS: Mapping[str, str] = {"auto": "q4_1", "int8": "int8", "bf16": "bf16"}
"""dtype of the default model -> name of its form in the peers benchmark."""
_SAME = ("cpu", "cores", "isa")  # of the machine, as both results say it


def figures(rounds: Sequence[Round], model: str, dtype: str, peers: Path | None = None) -> dict[str, _report.Figure]:
    """`none_c1_over_peers`: ms per output token behind the first, 128 in and 128 out, one request at a time, over the figure of
    the newest whole result of the peers benchmark, `peers-DATE.json` (or the file `peers`); 1 is equally fast. None with the
    reason in `none_c1_over_peers_missing` where like cannot be compared with like."""
    ran = [one.ran[NONE] for one in rounds if one.cell == PLAIN_CELL]
    own = statistics.median(one.decode_s / one.later_tokens * 1e3 for one in ran) if ran else None
    theirs, said = _of_peers(model, dtype, peers)
    if own is None:
        said = "no round of the plain cell ran"
    known = own is not None and theirs is not None
    return {
        "none_decode_ms_c1": own,
        "peers_decode_ms_c1": theirs,
        "none_c1_over_peers": own / theirs if own is not None and theirs is not None else None,
        "none_c1_over_peers_missing": None if known else said,
        "none_c1_over_peers_file": said if theirs is not None and known else None,
    }


def _of_peers(model: str, dtype: str, given: Path | None) -> tuple[float | None, str]:
    """ms per token, and the name of the file; or None, and why."""
    form = FORMS.get(dtype) if model == "default" else None
    if form is None:
        return None, f"the peers benchmark does not measure {Path(model).name} with dtype {dtype}"
    key = f"decode_c1_netgain_{form}"
    found = []
    for path in [given] if given is not None else sorted(RESULTS.glob("peers-[0-9]*.json")):
        try:
            result: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(result.get(key), int | float) and isinstance(result.get("_context"), dict):
            found.append((str(result["_context"].get("date")), path.name, result))
    if not found:
        return None, f"no result of the peers benchmark has {key}"
    _, name, result = max(found, key=lambda one: one[:2])
    here = _report.machine()
    for what in _SAME:
        if result["_context"].get(what) != here[what]:
            return (
                None,
                f"{name} was measured on another machine ({what} {result['_context'].get(what)}, here {here[what]})",
            )
    return float(result[key]), name
