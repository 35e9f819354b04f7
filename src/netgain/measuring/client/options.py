"""Settings of a timed run: limits in time, what to ask the server for, and how much the client itself may disturb."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from netgain.errors import UsageError

LONGEST_S = 1e7  # about four months; timers know no infinity


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Past any of these the run says more about its client than about the server, and is void.

    `lateness_p99_s`: sending after the scheduled time. `loop_lag_p99_s`: the event loop waking late, which also delays
    the stamps of what arrives. `cpu_share`: this process's CPU seconds per second of the run (1.0 = one core).
    """

    lateness_p99_s: float = 0.05
    loop_lag_p99_s: float = 0.05
    cpu_share: float = 0.5


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to run. Times are in seconds.

    `timeout_s`: per request, from its sending. `deadline_s`: for the whole run, from its start (None: only the
    requests' own limits). `running_usage`: ask for token counts in every chunk (a server that refuses the field answers
    400: set it to False). `server_record`: ask for netgain's own account of each request; None asks the server first
    whether it is netgain. `server_tokens`: with it, prompt and output token ids. `speculate`: False opts out of
    speculation on a netgain server. `salt`: the items' n-th turn is sent under the cache_salt "SALT-n", so that prompts sent
    again find none of their own KV (a server that refuses the field answers 400). `retokenise`: counts the tokens of a
    text, used only where the server gives no
    counts. `extra_body` is merged into every request, `headers` are sent with it (an API key, say).
    `keep_interrupted`: a cancelled run returns what it has so far, as one that was stopped. `reuse_connections`: False for
    a server that closes them after each answer.
    """

    timeout_s: float = 120.0
    deadline_s: float | None = None
    running_usage: bool = True
    server_record: bool | None = None
    server_tokens: bool = False
    speculate: bool | None = None
    salt: str | None = None
    retokenise: Callable[[str], int] | None = None
    extra_body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    keep_interrupted: bool = False
    reuse_connections: bool = True
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    budget: Budget = msgspec.field(default_factory=Budget)

    def __post_init__(self) -> None:
        for name, value in (("timeout_s", self.timeout_s), ("deadline_s", self.deadline_s)):
            if value is not None and not 0.0 < value <= LONGEST_S:
                raise UsageError(f"{name} is {value}; it must be a positive number of seconds, at most {LONGEST_S:g}")
