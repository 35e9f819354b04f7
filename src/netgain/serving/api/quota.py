"""What a key may use of the server: requests at once, and requests and tokens per minute, counted on a Clock."""

import math

from netgain.ledger.clock import Clock
from netgain.serving.api.auth import Identity
from netgain.serving.api.errors import RETRY_AFTER_S, ApiError
from netgain.serving.api.keys import KeyLimits
from netgain.wording import count


class Bucket:
    """Holds up to a minute's worth, and starts full. It may be overdrawn; then nothing more is granted until it has refilled."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        self._level = min(float(self.per_minute), self._level + (now_s - self._at_s) * self.per_minute / 60.0)
        self._at_s = now_s
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until `amount` (of more than it can hold: all it can hold) is there; 0 when it is."""
        return max(0.0, min(amount, self.per_minute) - self.level(now_s)) * 60.0 / self.per_minute

    def take(self, amount: float, now_s: float) -> None:
        """Take `amount`, whatever is there; a negative amount gives back."""
        self._level = min(float(self.per_minute), self.level(now_s) - amount)

    def resize(self, per_minute: int, now_s: float) -> None:
        """The limit changed; what was used stays used."""
        used = self.per_minute - self.level(now_s)
        self.per_minute = per_minute
        self._level = per_minute - used


class _Account:
    """One key's use of the server."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None

    def follow(self, limits: KeyLimits, now_s: float) -> None:
        """The key's limits as they are now."""
        self.requests = _bucket(self.requests, limits.requests_per_minute, now_s)
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, now_s)


class Admission:
    """One HTTP request that was let in. `reserve` before its tokens are known, `settle` when they are, `leave` at its end."""

    def __init__(self, identity: Identity, account: _Account | None, clock: Clock) -> None:
        self.identity = identity
        self._account = account
        self._clock = clock
        self._reserved = 0.0

    def reserve(self, tokens: int) -> None:
        """Set `tokens` aside: the most that the request can use, of a bucket that holds less the whole bucket.

        Raises ApiError 429 with the seconds until the bucket has them.
        """
        bucket = self._account.tokens if self._account else None
        if bucket is None:
            return
        now_s = self._clock.now()
        wait_s = bucket.wait_s(tokens, now_s)
        if wait_s > 0:
            raise _over(
                f"this API key may use {count(bucket.per_minute, 'token')} per minute, {max(0, int(bucket.level(now_s)))} left, "
                f"and the request may use {tokens} (prompt and max_tokens)",
                "tokens",
                wait_s,
            )
        self._reserved = float(min(tokens, bucket.per_minute))
        bucket.take(self._reserved, now_s)

    def settle(self, tokens: int) -> None:
        """The request used `tokens`: charge them instead of what was set aside."""
        if self._account and self._account.tokens:
            self._account.tokens.take(tokens - self._reserved, self._clock.now())
        self._reserved = 0.0

    def leave(self) -> None:
        """The request is over; what is still set aside is given back."""
        if self._account:
            if self._reserved:
                self.settle(0)
            self._account.in_flight -= 1
        self._account = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What is left, in OpenAI's headers."""
        if self._account is None:
            return []
        now_s = self._clock.now()
        found = []
        for name, bucket in (("requests", self._account.requests), ("tokens", self._account.tokens)):
            if bucket is not None:
                full_s = bucket.wait_s(bucket.per_minute, now_s)
                shown = {"limit": bucket.per_minute, "remaining": max(0, int(bucket.level(now_s)))}
                found += [(f"x-ratelimit-{what}-{name}", str(value)) for what, value in shown.items()]
                found.append((f"x-ratelimit-reset-{name}", f"{full_s:.3f}s"))
        return [(name.encode(), value.encode()) for name, value in found]


class Quotas:
    """The accounts of all keys, in this process's memory: a restart of the server forgets what was used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def enter(self, identity: Identity) -> Admission:
        """Count a request in. Raises ApiError 429 when its key has as many in flight as it may, or none left this minute."""
        if identity.key_id is None or identity.limits is None:
            return Admission(identity, None, self._clock)
        now_s = self._clock.now()
        account = self._accounts.setdefault(identity.key_id, _Account())
        account.follow(identity.limits, now_s)
        allowed = identity.limits.max_in_flight
        if allowed is not None and account.in_flight >= allowed:
            raise _over(
                f"{count(account.in_flight, 'request')} of this API key in flight already, its limit",
                "concurrency",
                RETRY_AFTER_S,
            )
        if account.requests is not None:
            wait_s = account.requests.wait_s(1, now_s)
            if wait_s > 0:
                raise _over(
                    f"this API key may send {count(account.requests.per_minute, 'request')} per minute",
                    "requests",
                    wait_s,
                )
            account.requests.take(1, now_s)
        account.in_flight += 1
        return Admission(identity, account, self._clock)


def _bucket(bucket: Bucket | None, per_minute: int | None, now_s: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now_s)
    if bucket.per_minute != per_minute:
        bucket.resize(per_minute, now_s)
    return bucket


def _over(message: str, kind: str, wait_s: float) -> ApiError:
    seconds = max(RETRY_AFTER_S, math.ceil(wait_s))
    return ApiError(429, f"{message}: retry after {seconds} s", code=f"{kind}_limit_exceeded", retry_after_s=seconds)
