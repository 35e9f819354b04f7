"""Whether both arms said the same, token for token; a token-identical technique that does not is broken, however fast."""

from collections.abc import Iterable

import msgspec

from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.client.record import ClientRecord


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts compared and those that differ; `basis` says what was compared. `baseline_differs` are prompts for which
    the baseline contradicted itself: then nothing can be said about the candidate."""

    basis: str
    compared: int
    differing: tuple[str, ...]
    baseline_differs: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return self.compared > 0 and not self.differing


def said(record: ClientRecord) -> tuple[int, ...] | str | None:
    """What the request produced: token ids where the server told them, else text. None for a failure."""
    if not record.ok:
        return None
    if record.server is not None and record.server.output_ids is not None:
        return record.server.output_ids
    return record.text


def compare_tokens(
    observations: Iterable[Observation], baseline: str = BASELINE, candidate: str = CANDIDATE
) -> Identity:
    """Compare all outputs of a prompt over both arms and all blocks."""
    outputs: dict[str, dict[str, set[tuple[int, ...] | str]]] = {}
    kinds: set[type] = set()
    for observation in observations:
        output = said(observation.record)
        if output is None or observation.arm not in (baseline, candidate):
            continue
        kinds.add(type(output))
        outputs.setdefault(observation.record.item_id, {}).setdefault(observation.arm, set()).add(output)
    both = {item: arms for item, arms in outputs.items() if len(arms) == 2}
    return Identity(
        basis="token ids" if kinds == {tuple} else "text" if kinds == {str} else "token ids and text",
        compared=len(both),
        differing=tuple(sorted(item for item, arms in both.items() if arms[baseline] != arms[candidate])),
        baseline_differs=tuple(sorted(item for item, arms in outputs.items() if len(arms.get(baseline, ())) > 1)),
    )
