"""What drafting took of the memory that requests could have, in both arms, and how many requests that is."""

import msgspec


class ArmMemory(msgspec.Struct, frozen=True, kw_only=True):
    """As the arm's server told; None where it does not. Of `kv_token_bytes`, `draft_kv_token_bytes` are there for drafting.
    `suffix_index_bytes`: at the end of the experiment; None also where no suffixes are indexed."""

    kv_tokens: int | None = None
    kv_token_bytes: int | None = None
    draft_weight_bytes: int | None = None
    draft_kv_token_bytes: int | None = None
    suffix_index_bytes: int | None = None


class DraftAccount(msgspec.Struct, frozen=True, kw_only=True):
    """`request_tokens`: prompt and answer of a request of this workload, on the mean. `wasted_per_token`: drafted tokens that did
    not stand, per token of the answers. `origin`: of what is known of a draft, in words. None: not known."""

    baseline: ArmMemory
    candidate: ArmMemory
    request_tokens: float | None = None
    wasted_per_token: float | None = None
    origin: str | None = None

    @property
    def same_memory_tokens(self) -> int | None:
        """KV tokens that the candidate would have room for in the memory of the baseline's KV, once the draft's weights and the
        suffix indexes are in it, too; None where anything of that is not known."""
        before, after = self.baseline, self.candidate
        if before.kv_tokens is None or before.kv_token_bytes is None or not after.kv_token_bytes:
            return None
        if after.draft_weight_bytes is None:
            return None
        taken = after.draft_weight_bytes + (after.suffix_index_bytes or 0)
        return max(0, before.kv_tokens * before.kv_token_bytes - taken) // after.kv_token_bytes

    def requests(self, tokens: int | None) -> float | None:
        """How many requests of mean length so many KV tokens hold at once."""
        return None if tokens is None or not self.request_tokens else tokens / self.request_tokens

    def fewer(self, tokens: int | None) -> float | None:
        """How many requests fewer than in the baseline fit at once where there is room for `tokens`."""
        before, after = self.requests(self.baseline.kv_tokens), self.requests(tokens)
        return None if before is None or after is None else before - after
