"""What is asked, checked and read before any server is started."""

from collections.abc import Mapping

import msgspec

from netgain.deciding.decide.candidates import refuse_what_cannot_be_judged, without_lossy
from netgain.deciding.decide.prepared import check_unused
from netgain.deciding.decide.prompts import prepare_items
from netgain.deciding.decide.quality import check_files
from netgain.deciding.decide.settings import Settings
from netgain.deciding.technique.catalogue import CATALOGUE, technique
from netgain.deciding.technique.drafter import read_drafter
from netgain.deciding.technique.protocol import Technique
from netgain.measuring.record.as_workload import load_traffic
from netgain.measuring.workload.item import Item, Workload
from netgain.measuring.workload.slo import SLO, parse_slo


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """`items`: the prompts of this run. `predicted`: techniques that are predicted, `tryable` those of them that may be tried."""

    workload: Workload
    items: tuple[Item, ...]
    slo: SLO | None
    predicted: Mapping[str, Technique]
    tryable: Mapping[str, Technique]


def question_of(settings: Settings) -> Question:
    """Raises UsageError for anything that cannot be used."""
    workload = load_traffic(settings.workload)
    slo = None if settings.slo is None else parse_slo(settings.slo)
    named = {name: technique(name) for name in settings.techniques}
    tryable = named or without_lossy(CATALOGUE)
    refuse_what_cannot_be_judged(workload, tryable)
    check_files(settings.texts, settings.tasks, settings.scorer)
    if settings.draft is not None:
        read_drafter(settings.draft, settings.draft_survival, settings.draft_cost)
    check_unused(settings)
    return Question(
        workload=workload,
        items=prepare_items(workload, settings),
        slo=slo,
        predicted=named or CATALOGUE,
        tryable=tryable,
    )
