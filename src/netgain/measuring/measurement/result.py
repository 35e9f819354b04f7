"""A measurement as one document: what was asked, what came out, and what must not be concluded. docs/measure.md has the schema.

The same document holds netgain's own measurements and those imported from other tools, and is what comparisons read.
"""

from pathlib import Path
from typing import Literal

import msgspec

from netgain.cost.price import Cost
from netgain.documents import read_document, to_json
from netgain.errors import UsageError
from netgain.measuring.client.meter import ClientLoad
from netgain.measuring.client.summary import Summary
from netgain.measuring.observe.scrape import Observed
from netgain.measuring.workload.arrivals import Arrivals, Bursty, Closed, Constant, Poisson, Recorded, describe
from netgain.plain_file import write_whole

SCHEMA: Literal["netgain.measurement"] = "netgain.measurement"
VERSION = 3
RESULT_FILE = "measurement.json"
RECORDS_FILE = "records.parquet"

Tool = Literal["netgain", "vllm bench serve", "guidellm", "aiperf", "inference-perf"]


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Which tool measured. `file`: what was imported (None: measured here)."""

    tool: Tool
    version: str | None = None
    file: str | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, as far as it says so itself; None: it does not say.

    `source`: where its weights came from (path or id), `weights`: their digest. `max_model_len` (tokens of one request),
    `max_running` (requests computed together) and `kv_tokens` (room of the KV cache) are what two servers must have alike to be
    compared as equals. `started_unix_s`: when its process began. `said`: its settings under its own names, from the places that
    netgain knows, as they were before the load.
    """

    url: str | None
    model: str | None
    engine: str | None = None
    version: str | None = None
    source: str | None = None
    weights: str | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    device: str | None = None
    max_model_len: int | None = None
    max_running: int | None = None
    kv_tokens: int | None = None
    started_unix_s: float | None = None
    said: dict[str, str | int | float | bool | None] = {}


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Two SHA-256 digests of the workload: `digest` of prompts, limits and sampling, `texts_digest` of the prompts alone. Results
    with the same `digest` sent the same requests, as far as each got. `sent_each`: how often at most."""

    name: str | None
    digest: str | None = None
    texts_digest: str | None = None
    items: int | None = None
    sent_each: int | None = None
    synthetic: bool = False
    notes: tuple[str, ...] = ()


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How requests came. `warm_up`: sent before and not counted. `duration_s`: None where a number of requests was the limit.

    `max_tokens` and `temperature`: what was put in place of the workload's own (None: nothing). `timeout_s`: of one request.
    `salted`: each turn of the prompts had a cache_salt of its own, so none found KV of an earlier turn.
    """

    kind: Literal["poisson", "constant", "bursty", "recorded", "closed", "unknown"]
    text: str
    rate_per_s: float | None = None
    concurrency: int | None = None
    cv: float | None = None
    seed: int | None = None
    warm_up: int = 0
    duration_s: float | None = None
    requests: int | None = None
    timeout_s: float | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    salted: bool = False


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One window of a saturation search. `met`: None when it could not be judged. `why`: what decided it, in words.

    `early`: it was ended as soon as the SLO could no longer be met; its figures are of the part that was seen.
    """

    rate_per_s: float
    seed: int
    met: bool | None
    why: str
    early: bool
    requests: int
    failed: int
    ttft_s: float | None
    itl_s: float | None
    attainment: float | None
    goodput_per_s: float | None
    output_tokens_per_s: float | None
    in_flight: float | None
    lasted_s: float


class Saturation(msgspec.Struct, frozen=True, kw_only=True):
    """The highest open-loop rate at which all targets of the SLO hold lies in [`low_per_s`, `high_per_s`).

    None for an end that was not found. `low_met`, `high_met`: windows that met the SLO at that rate, of how many. `limit`: what
    ended the search: precision reached, time, the client, the range of rates, the number of windows, whoever interrupted it, or
    a server that no longer answered.
    `goodput_per_s` at `low_per_s`.
    """

    slo: str
    low_per_s: float | None
    high_per_s: float | None
    low_met: tuple[int, int] | None
    high_met: tuple[int, int] | None
    goodput_per_s: float | None
    limit: Literal["precision", "budget", "client", "range", "windows", "stopped", "server"]
    text: str
    windows: tuple[Window, ...]


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """`began_unix_s`: when the first counted request was due, `ended_unix_s`: when the last one had ended. `caveats`: what must
    be known before a figure is used. `restarts`: how the server was seen to have begun again or to have become another one since
    it was met; empty: it was seen not to have, None: it tells nothing by which one could know. `stopped`: why it ended before
    all was sent and answered (None: it did not), with `unfinished` requests in flight then, which have no record.

    `records`: name of the Parquet file beside this document with one row per request, None where there are none.
    `server_side.absent` says why there are no server metrics. With `saturation`, `summary` is of the last window at `low_per_s`.
    `cost` is of what `summary` is of, None where no price was given.
    """

    schema: Literal["netgain.measurement"] = SCHEMA
    version: int = VERSION
    netgain: str
    source: Source
    began_unix_s: float | None
    ended_unix_s: float | None = None
    stopped: str | None = None
    unfinished: int = 0
    server: Server
    restarts: tuple[str, ...] | None = None
    prompts: Prompts
    load: Load
    summary: Summary
    client: ClientLoad | None = None
    server_side: Observed | None = None
    saturation: Saturation | None = None
    cost: Cost | None = None
    caveats: tuple[str, ...] = ()
    records: str | None = None


def load_of(arrivals: Arrivals) -> Load:
    """The arrivals in the words of a result, without what else a load has."""
    seed = arrivals.seed if isinstance(arrivals, Poisson | Bursty) else None
    rate = None if isinstance(arrivals, Closed) else arrivals.rate_per_s
    kinds: dict[type, Literal["poisson", "constant", "bursty", "recorded", "closed"]] = {
        Poisson: "poisson",
        Constant: "constant",
        Bursty: "bursty",
        Recorded: "recorded",
        Closed: "closed",
    }
    return Load(
        kind=kinds[type(arrivals)],
        text=describe(arrivals),
        rate_per_s=rate,
        concurrency=arrivals.concurrency if isinstance(arrivals, Closed) else None,
        cv=arrivals.cv if isinstance(arrivals, Bursty) else None,
        seed=seed,
    )


def write_measurement(measurement: Measurement, folder: Path) -> Path:
    """Write `measurement.json` into `folder`, replacing it at once. Returns its path. Raises UsageError."""
    path = folder / RESULT_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, to_json(measurement))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot write {path}: {reason}; name another folder with --output") from error
    return path


def read_measurement(path: Path) -> Measurement:
    """Read a result file, or the one in a folder. Raises UsageError that says what is wrong with it."""
    return read_document(
        path, RESULT_FILE, Measurement, SCHEMA, VERSION, "import other tools' results with netgain measure --import"
    )
