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
    """What the request produced: token ids where the server told them, else text. None for a failure, and for an answer of
    which neither was kept."""
    if record.ok and record.server is not None and record.server.output_ids is not None:
        return record.server.output_ids
    return written(record)


def written(record: ClientRecord) -> str | None:
    """Answer and reasoning as text, or their digest where a file has only that. None for a failure, and where nothing was
    kept of an answer that had tokens."""
    if not record.ok:
        return None
    text = record.text + record.reasoning or record.text_sha256
    return "" if text is None and record.output_tokens == 0 else text


def compare_tokens(
    observations: Iterable[Observation], baseline: str = BASELINE, candidate: str = CANDIDATE
) -> Identity:
    """Compare all outputs of a prompt over both arms and all blocks: by token ids if every answer has them, else by text. Repeats
    that were asked in other words are other prompts here."""
    answered = [seen for seen in observations if seen.arm in (baseline, candidate) and seen.record.ok]
    by_ids = bool(answered) and all(isinstance(said(seen.record), tuple) for seen in answered)
    outputs: dict[tuple[str, int], dict[str, set[tuple[int, ...] | str]]] = {}
    for seen in answered:
        output = said(seen.record) if by_ids else written(seen.record)
        if output is not None:
            outputs.setdefault((seen.record.item_id, seen.text), {}).setdefault(seen.arm, set()).add(output)
    both = {item: arms for item, arms in outputs.items() if len(arms) == 2}
    return Identity(
        basis="token ids" if by_ids else "text",
        compared=len({item for item, _ in both}),
        differing=tuple(sorted({item for (item, _), arms in both.items() if arms[baseline] != arms[candidate]})),
        baseline_differs=tuple(
            sorted({item for (item, _), arms in outputs.items() if len(arms.get(baseline, ())) > 1})
        ),
    )
