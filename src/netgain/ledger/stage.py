"""The closed list of stages a request can wait in. Metrics, records, reports and diagnosis all read this one list."""

from enum import StrEnum


class Stage(StrEnum):
    """What a request waits for inside the server, between its arrival and its last accepted byte."""

    TOKENISE = "tokenise"
    QUEUED = "queued"
    CACHE_LOOKUP = "cache_lookup"
    KV_LOAD = "kv_load"
    KV_TRANSFER = "kv_transfer"
    PREFILL = "prefill"
    DECODE = "decode"
    DRAFT = "draft"
    VERIFY = "verify"
    PREEMPTED = "preempted"
    RESPOND = "respond"
    CLIENT_BLOCKED = "client_blocked"
    UNATTRIBUTED = "unattributed"


class ClientStage(StrEnum):
    """The client's own list, around the server's: end-to-end = lateness + network + server."""

    LATENESS = "lateness"
    NETWORK = "network"
    SERVER = "server"


# When two things run at once, the request waits for the one that stands first here.
PRECEDENCE: tuple[Stage, ...] = (
    Stage.TOKENISE,
    Stage.PREFILL,
    Stage.DECODE,
    Stage.VERIFY,
    Stage.DRAFT,
    Stage.CACHE_LOOKUP,
    Stage.KV_LOAD,
    Stage.KV_TRANSFER,
    Stage.PREEMPTED,
    Stage.QUEUED,
    Stage.RESPOND,
    Stage.CLIENT_BLOCKED,
)
