"""What handoffs cost either side of a comparison, where its server counts them, or the files of its results hold its counters."""

from collections import Counter
from collections.abc import Mapping, Sequence

from netgain.deciding.compare.loading import Loaded
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE
from netgain.deciding.verdict.handoffs import of_trial
from netgain.measuring.observe.handoffs import Handoffs, handoffs, together
from netgain.measuring.observe.names import known_engine
from netgain.measuring.observe.scrape import Observed


def told_handoffs(trial: Trial, watched: Mapping[str, Observed | None], urls: Mapping[str, str]) -> dict[str, Handoffs]:
    """Of a run on servers. `watched`: counters of those that ran already; the trial has those of the started ones. `urls` of all
    arms."""
    found = {
        name: trial.handoffs[name] if name in trial.handoffs else _seen(watched.get(name))
        for name in (BASELINE, CANDIDATE)
    }
    shared = {url for url, arms in Counter(urls.values()).items() if arms > 1}
    why = "one server answered for several arms, and its counters do not tell these apart"
    alone = {
        name: Handoffs(unknown=one.unknown or why) if urls.get(name) in shared else one for name, one in found.items()
    }
    return of_trial(trial, alone)


def kept_handoffs(sides: Mapping[str, Sequence[Loaded]]) -> dict[str, Handoffs]:
    """Of results: all files of a side together, each over the window of its load."""
    return {name: together(map(_kept, side)) for name, side in sides.items()}


def _kept(result: Loaded) -> Handoffs:
    seen, engine = result.measurement.server_side, known_engine(result.measurement.server.engine)
    if seen is not None:
        return handoffs(seen.window, seen.engine or engine)
    if engine in (None, "netgain"):
        return Handoffs(unknown="the result holds none of the server's own counters")
    return handoffs(None, engine)


def _seen(seen: Observed | None) -> Handoffs:
    return Handoffs(unknown="its metrics were not read") if seen is None else handoffs(seen.window, seen.engine)
