"""How many drafts each request gets, by how many requests decode."""

from collections.abc import Mapping, Sequence

from netgain.serving.engine.drafting import AsManyAsAllowed
from netgain.serving.engine.protocols import Ask, Load


class LoadControl(AsManyAsAllowed):
    """By a table: with at least so many decoding requests, at most so many drafts for each. Below the smallest entry the
    configured number holds."""

    def __init__(self, table: Mapping[int, int]) -> None:
        if not table or min(table) < 1 or min(table.values()) < 0:
            raise ValueError(f"the table maps requests (>= 1) to drafts (>= 0), got {dict(table)}")
        self._table = sorted(table.items(), reverse=True)

    def limits(self, asks: Sequence[Ask], load: Load) -> list[int]:
        most = next((drafts for batch, drafts in self._table if load.batch >= batch), None)
        return [ask.limit if most is None else min(most, ask.limit) for ask in asks]
