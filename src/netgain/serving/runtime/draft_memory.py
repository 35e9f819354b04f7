"""What drafting takes of the memory that requests could have: weights, KV and features of every token, suffix indexes."""

from typing import NamedTuple

from netgain.serving.speculation.suffix import SuffixProposer


class DraftMemory(NamedTuple):
    """`token_bytes` are taken of each of the `kv_tokens` that the KV cache has room for, used or not. `proposer` drafts from
    text, where that is what drafts."""

    weight_bytes: int
    token_bytes: int
    kv_tokens: int
    proposer: object = None

    def gauges(self) -> dict[str, float]:
        """Names as in the ledger's GAUGES; suffix indexes only where drafts come from such. From any thread."""
        taken: dict[str, float] = {
            "draft_weight_bytes": self.weight_bytes,
            "draft_kv_token_bytes": self.token_bytes,
            "draft_kv_bytes": self.token_bytes * self.kv_tokens,
        }
        if isinstance(self.proposer, SuffixProposer):
            taken["suffix_index_bytes"] = self.proposer.bytes
        return taken
