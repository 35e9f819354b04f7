"""What measuring quality found: one server, or two beside each other."""

from collections.abc import Sequence

import msgspec

from netgain.measuring.quality.answering import TaskScores
from netgain.measuring.quality.divergence import Divergence
from netgain.measuring.quality.laws import LoadedKV
from netgain.measuring.quality.near_ties import Sameness
from netgain.measuring.quality.paired_scores import Paired
from netgain.measuring.quality.perplexity import Perplexity
from netgain.measuring.quality.teacher_forcing import Scored, Unscored


class ServerQuality(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `perplexity` None: `perplexity_missing` says why. `unscored` texts are left out and named. `tasks` None: none
    were given. `loaded`: texts were scored behind a first half that came from KV tiers; None: they were computed whole."""

    url: str
    model: str
    perplexity: Perplexity | None
    perplexity_missing: str | None
    unscored: tuple[Unscored, ...]
    tasks: TaskScores | None
    loaded: LoadedKV | None = None


def loaded_of(scored: Sequence[Scored]) -> LoadedKV | None:
    """What was loaded for all of these texts; None where none of them was scored behind loaded KV."""
    parts = [one.loaded for one in scored if one.loaded is not None]
    if not parts:
        return None
    forms = {form for part in parts for form in (part.codecs or "").split("+") if form}
    return LoadedKV(sum(part.loaded_tokens for part in parts), "+".join(sorted(forms)) or None)


class QualityComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The candidate beside the baseline; what is None has its reason in the field of the same name with `_missing`."""

    divergence: Divergence | None
    divergence_missing: str | None
    sameness: Sameness | None
    sameness_missing: str | None
    tasks: Paired | None
    tasks_missing: str | None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """`candidate` and `comparison` are None when a single server was asked."""

    netgain: str
    began_unix_s: float
    seconds: float
    texts: str
    task_file: str | None
    scorer: str | None
    baseline: ServerQuality
    candidate: ServerQuality | None = None
    comparison: QualityComparison | None = None
