"""Where a request's time goes, as means over requests: the form in which diagnosis, prediction and report share it."""

import msgspec

from netgain.ledger.stage import ClientStage, Stage


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """Mean seconds per request. Means add: `e2e_s` = sum(client_s), and client_s[SERVER] = sum(ttft) + sum(decode).

    `ttft_stages` tile arrival to first token, `decode_stages` first token to end; `own_s` and `stall_s` split step time
    into the request's own cost and waiting for batch neighbours (None: the engine had no cost curve). `requests` counts
    the records used, `dropped` those left out because they failed or came without a server record. `cached_tokens` None: not
    every request knew. `not_measured`: stages that this engine does not tell apart: their time is in UNATTRIBUTED, and they are
    unknown, not zero. `network_within`: the engine has no time of its own for whole requests, so SERVER holds the network too.
    """

    requests: int
    dropped: int
    e2e_s: float
    client_s: dict[ClientStage, float]
    ttft_stages: dict[Stage, float]
    decode_stages: dict[Stage, float]
    prompt_tokens: float
    cached_tokens: float | None
    output_tokens: float
    own_s: float | None = None
    stall_s: float | None = None
    not_measured: tuple[Stage, ...] = ()
    network_within: bool = False

    @property
    def stages(self) -> dict[Stage, float]:
        """Mean server seconds per stage over the whole request, in the order of the closed list."""
        both = {stage: self.ttft_stages.get(stage, 0.0) + self.decode_stages.get(stage, 0.0) for stage in Stage}
        return {stage: seconds for stage, seconds in both.items() if seconds > 0.0}

    @property
    def ttft_s(self) -> float:
        """Mean server seconds to the first token."""
        return sum(self.ttft_stages.values())

    @property
    def decode_s(self) -> float:
        """Mean server seconds from the first token to the end."""
        return sum(self.decode_stages.values())

    def share(self, *stages: Stage) -> float:
        """Part of the mean end-to-end time that these server stages take, 0 to 1."""
        spent = self.stages
        return sum(spent.get(stage, 0.0) for stage in stages) / self.e2e_s if self.e2e_s > 0.0 else 0.0
