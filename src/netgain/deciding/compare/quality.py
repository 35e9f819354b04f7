"""When a candidate's answers may be worth less than the baseline's, and what has to be known of them before it is adopted."""

import msgspec

from netgain.deciding.compare.rule import Ruling
from netgain.deciding.compare.settings import Settings
from netgain.deciding.compare.traits import FIELDS
from netgain.deciding.decide.quality import QUICK_TEXTS, Judged
from netgain.deciding.experiment.identity import Identity
from netgain.measuring.quality.measure import QualityAsk

HOW_SERVERS = "measure it beside the speed: --texts bundled (or a file of yours), and --tasks FILE for your own tasks"
HOW_RESULTS = "compare the servers themselves, with --texts or --tasks"


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """`reasons` why quality must have been measured (none: it need not). `doubts` and `losses` as in `Terms`."""

    reasons: tuple[str, ...]
    doubts: tuple[str, ...]
    losses: tuple[str, ...]


def worth(identity: Identity, ruling: Ruling, settings: Settings, measured: Judged | None) -> Worth:
    """A loss that was shown counts whatever the reason; that nothing was shown only where something had to be."""
    reasons = _reasons(identity, ruling, settings.promises_identity)
    losses = () if measured is None else measured.losses
    if not reasons:
        return Worth(reasons=(), doubts=(), losses=losses)
    if measured is not None:
        return Worth(reasons=reasons, doubts=measured.doubts, losses=losses)
    how = HOW_SERVERS if settings.servers else HOW_RESULTS
    says = f"{', '.join(reasons)}, so the candidate may answer worse, and its quality was not measured; {how}"
    return Worth(reasons=reasons, doubts=(says,), losses=())


def _reasons(identity: Identity, ruling: Ruling, promises_identity: bool) -> tuple[str, ...]:
    """Prompts on which the baseline contradicts itself tell nothing of the candidate."""
    found = [
        row.says
        for row in ruling.rows
        if FIELDS[row.field].part == "identity"
        and row.state == "overridden"
        and None not in (row.baseline, row.candidate)
    ]
    telling = set(identity.differing) - set(identity.baseline_differs)
    if telling and not promises_identity:
        known = (
            "" if ruling.same_model else ", and that both serve the same model in the same number types is not known"
        )
        found.append(f"{len(telling)} of {identity.compared} answers differ{known}")
    return tuple(found)


def quality_ask(settings: Settings, urls: tuple[str, str], models: tuple[str | None, str | None]) -> QualityAsk:
    """What is asked of baseline and candidate, in this order."""
    asked = settings.quality
    assert asked is not None
    return QualityAsk(
        url=urls[0],
        against=urls[1],
        model=models[0],
        against_model=models[1],
        texts=asked.texts,
        answers=0,  # the comparison itself compares what both answer
        most_texts=QUICK_TEXTS if settings.quick else None,
        tasks=asked.tasks,
        scorer=asked.scorer,
        margin=asked.margin,
        timeout_s=settings.request_timeout_s,
        seed=settings.seed,
        headers=settings.baseline.headers,
        against_headers=settings.candidate.headers,
    )
