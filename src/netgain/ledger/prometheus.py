"""The ledger as Prometheus metrics, in a registry of its own: closed label sets, and counters that survive engine restarts."""

import math
from collections.abc import Mapping
from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest

from netgain.ledger import kv_metrics
from netgain.ledger.histogram import WeightedHistogram
from netgain.ledger.records import HandoffKind, RequestRecord
from netgain.ledger.stage import Stage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FINISH_REASONS = ("stop", "length", "abort", "deadline", "error")
POSITIONS = 16  # positions and lengths of drafts beyond it are counted together, under "more"

TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
ITL_BUCKETS_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
E2E_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)

# Value in an engine's report -> metric, and what it says. Values under other names are left alone.
GAUGES: Mapping[str, tuple[str, str]] = {
    "running": ("netgain_requests_running", "Requests in the running set of the step loop."),
    "waiting": ("netgain_requests_waiting", "Requests that wait for admission, preempted ones included."),
    "free_blocks": (
        "netgain_kv_blocks_free",
        "KV blocks that can be taken now (cached ones that nobody uses included).",
    ),
    "total_blocks": ("netgain_kv_blocks", "KV blocks of the device pool."),
    "step_cost_age_s": ("netgain_step_cost_age_seconds", "Since the step-cost curve in use was measured."),
    "step_cost_cached": (
        "netgain_step_cost_cached",
        "1 when that curve was kept from an earlier start, 0 when this engine measured it.",
    ),
    "step_cost_drift": (
        "netgain_step_cost_drift_ratio",
        "Median of recent decode steps over what the curve says, when last compared.",
    ),
    "draft_weight_bytes": ("netgain_draft_weight_bytes", "Weights that only draft."),
    "draft_kv_token_bytes": (
        "netgain_draft_kv_token_bytes",
        "Bytes for drafting (the draft's KV, features kept for it) of every token in the KV cache.",
    ),
    "draft_kv_bytes": ("netgain_draft_kv_bytes", "These bytes over all tokens that the KV cache has room for."),
    "suffix_index_bytes": ("netgain_suffix_index_bytes", "Memory of the suffix indexes, an upper estimate."),
    "http_tasks": (
        "netgain_http_tasks",
        "Tasks of the HTTP process's event loop: one or two per request, few without.",
    ),
}
COUNTERS: Mapping[str, tuple[str, str]] = {
    "steps": ("netgain_steps", "Turns of the step loop."),
    "prompt_tokens": ("netgain_prompt_tokens", "Prompt tokens admitted, each request once."),
    "cached_tokens": (
        "netgain_cached_tokens",
        "Prompt tokens that were found on the device or loaded from tiers, and not computed.",
    ),
    "output_tokens": ("netgain_output_tokens", "Tokens committed."),
    "preemptions": ("netgain_preemptions", "Running requests sent back for recompute."),
    "draft_steps": ("netgain_draft_steps", "Verify steps."),
    "draft_faults": ("netgain_draft_faults", "Failures of the draft model, which cost drafts and no answer."),
    "drafted_tokens": ("netgain_drafted_tokens", "Draft tokens verified."),
    "accepted_tokens": ("netgain_accepted_tokens", "Draft tokens accepted."),
    "wasted_draft_tokens": ("netgain_wasted_draft_tokens", "Draft tokens verified and not accepted."),
    "draft_committed_tokens": ("netgain_draft_committed_tokens", "Tokens committed by verify steps."),
    "drafts_unasked": (
        "netgain_drafts_unasked",
        "Decode steps of a request that wanted no drafts, by control or load.",
    ),
    "drafts_empty": ("netgain_drafts_empty", "Decode steps of a request for which no draft was found."),
    "drafts_declined": ("netgain_drafts_declined", "Decode steps of a request whose drafts did not promise to pay."),
    "step_verify_s": ("netgain_step_verify_seconds", "The part of the executor's time in steps that verified drafts."),
    "step_prefill_tokens": (
        "netgain_step_prefill_tokens",
        "Prompt tokens computed in steps, recomputed ones included.",
    ),
    "step_decode_tokens": ("netgain_step_decode_tokens", "Last tokens of running requests computed in steps."),
    "step_draft_tokens": ("netgain_step_draft_tokens", "Draft tokens computed in steps."),
    "step_schedule_s": ("netgain_step_schedule_seconds", "Step time spent choosing what to compute."),
    "step_draft_s": ("netgain_step_draft_seconds", "Step time spent proposing drafts."),
    "step_execute_s": ("netgain_step_execute_seconds", "Step time spent in the executor."),
    "step_commit_s": ("netgain_step_commit_seconds", "Step time spent verifying, committing and answering."),
    "step_forward_s": ("netgain_step_forward_seconds", "The part of the executor's time in which the model computed."),
    "step_between_s": (
        "netgain_step_between_seconds",
        "Time between steps while requests ran: passing on and taking in.",
    ),
    "step_own_s": ("netgain_step_own_seconds", "Sum over requests of what their part of each step would cost alone."),
    "step_stall_s": (
        "netgain_step_stall_seconds",
        "Sum over requests of step time caused by what was batched with them.",
    ),
    "decode_only_steps": ("netgain_decode_only_steps", "Steps that held decodes and drafts, and no prompt."),
    "decode_only_s": ("netgain_decode_only_seconds", "Wall time of these steps."),
    "decode_only_context_tokens": (
        "netgain_decode_only_context_tokens",
        "KV tokens that the requests of these steps had behind them, each step anew.",
    ),
    "prefill_only_steps": ("netgain_prefill_only_steps", "Steps that held prompts and no decode."),
    "prefill_only_s": ("netgain_prefill_only_seconds", "Wall time of these steps."),
    "prefill_only_tokens": ("netgain_prefill_only_tokens", "Prompt tokens computed in these steps."),
    "prefill_only_chosen": ("netgain_prefill_only_chosen_tokens", "First tokens chosen in these steps."),
    "records_refused": ("netgain_records_refused", "Records with impossible numbers, not counted elsewhere."),
    "listener_failures": ("netgain_listener_failures", "Failures of what listens to records (a full disk)."),
    "steps_unrecorded": (
        "netgain_steps_unrecorded",
        "Steps whose account failed: in no other figure, answers unharmed.",
    ),
    "engine_restarts": ("netgain_engine_restarts", "Engine processes started again after one had ended."),
    "traces_exported": ("netgain_traces_exported", "Requests whose spans a collector took."),
    "traces_unsampled": ("netgain_traces_unsampled", "Requests that sampling left out of tracing."),
    "traces_dropped": ("netgain_traces_dropped", "Requests whose spans were lost: queue full, or not delivered."),
}
HANDOFF_COUNTERS: Mapping[str, tuple[str, str]] = {
    "handoffs": ("netgain_handoffs", "Handoffs of work or data."),
    "handoffs_failed": ("netgain_handoffs_failed", "Handoffs that failed."),
    "handoff_bytes": ("netgain_handoff_bytes", "Bytes handed over."),
    "handoff_used_tokens": ("netgain_handoff_used_tokens", "Tokens handed over and used."),
    "handoff_wasted_tokens": ("netgain_handoff_wasted_tokens", "Tokens handed over and thrown away."),
    "handoff_wasted_bytes": ("netgain_handoff_wasted_bytes", "Those of the bytes that were thrown away."),
    "handoff_waited_s": ("netgain_handoff_waited_seconds", "Time in which a request waited for a handoff."),
    "handoff_busy_s": ("netgain_handoff_busy_seconds", "Time in which a handoff kept its worker or link busy."),
    "handoff_hidden_s": (
        "netgain_handoff_hidden_seconds",
        "Known part of the busy time that ran behind something else.",
    ),
}


class Exporter:
    """Metrics of one serving process. Not thread-safe against itself; scraping from another thread is safe.

    Request records come in as requests end (`request`), gaps between tokens as they are sent (`gap`), and each engine's
    gauges and cumulative counters whenever they are received (`engine`). An amount that a counter cannot take (negative,
    not a number) is refused and counted in netgain_amounts_refused; no method raises for it.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=True)
        own = self.registry
        self._refused = Counter("netgain_amounts_refused", "Amounts that no counter can take.", registry=own)
        self._requests = Counter(
            "netgain_requests", "Requests ended, by finish reason.", ["finish_reason"], registry=own
        )
        self._stages = Counter(
            "netgain_stage_seconds", "Time of ended requests, by the stage they waited for.", ["stage"], registry=own
        )
        self._ttft_stages = Counter(
            "netgain_ttft_stage_seconds",
            "The part of netgain_stage_seconds before first tokens.",
            ["stage"],
            registry=own,
        )
        self._ttft = Histogram(
            "netgain_ttft_seconds", "From arrival to the first token.", registry=own, buckets=TTFT_BUCKETS_S
        )
        self._itl = WeightedHistogram(
            "netgain_itl_seconds", "Time over tokens between sends of one request.", ITL_BUCKETS_S
        )
        own.register(self._itl)
        self._e2e = Histogram(
            "netgain_e2e_seconds", "From arrival to the last byte accepted.", registry=own, buckets=E2E_BUCKETS_S
        )
        self._drafted = Counter(
            "netgain_drafted_at", "Drafts of ended requests that reached a position.", ["position"], registry=own
        )
        self._accepted = Counter(
            "netgain_accepted_at", "Drafts of ended requests accepted at a position.", ["position"], registry=own
        )
        self._by_length = Counter(
            "netgain_verify_steps",
            "Verify steps of ended requests, by the length of the draft and how many of it were accepted.",
            ["length", "accepted"],
            registry=own,
        )
        self._info = Info("netgain_build", "What serves.", registry=own)
        self._gauges = {
            name: Gauge(metric, text, ["replica"], registry=own)
            for name, (metric, text) in {**GAUGES, **kv_metrics.BLEND_GAUGES}.items()
        }
        self._counters = {
            name: Counter(metric, text, ["replica"], registry=own)
            for name, (metric, text) in {**COUNTERS, **kv_metrics.COUNTERS, **kv_metrics.BLEND_COUNTERS}.items()
        }
        self._labelled_counters = {
            name: Counter(metric, text, [*kinds, "replica"], registry=own)
            for kinds, counters in (
                (_TIER, kv_metrics.TIER_COUNTERS),
                (_REASON, kv_metrics.REASON_COUNTERS),
                (_CODEC, kv_metrics.CODEC_COUNTERS),
            )
            for name, (metric, text) in counters.items()
        }
        self._labelled_gauges = {
            name: Gauge(metric, text, [*kinds, "replica"], registry=own)
            for kinds, gauges in ((_TIER, kv_metrics.TIER_GAUGES), (_CODEC, kv_metrics.CODEC_GAUGES))
            for name, (metric, text) in gauges.items()
        }
        self._reuse = kv_metrics.ReuseHistograms(own)
        self._handoffs = {
            name: Counter(metric, text, ["kind", "replica"], registry=own)
            for name, (metric, text) in HANDOFF_COUNTERS.items()
        }
        self._seen: dict[str, _Seen] = {}
        ProcessCollector(registry=own)  # process_start_time_seconds tells a restart of the whole server
        for reason in (*FINISH_REASONS, "other"):
            self._requests.labels(reason)
        for stage in Stage:
            self._stages.labels(stage.value)
            self._ttft_stages.labels(stage.value)

    def render(self) -> bytes:
        """The exposition text, of type CONTENT_TYPE."""
        return generate_latest(self.registry)

    def describe(self, labels: Mapping[str, str]) -> None:
        """What serves (version, model, kernel, ...): the labels of netgain_build_info, replacing earlier ones."""
        self._info.info(dict(labels))

    def request(self, record: RequestRecord) -> None:
        """A request has ended."""
        reason = record.finish_reason if record.finish_reason in FINISH_REASONS else "other"
        self._requests.labels(reason).inc()
        for stage, seconds in record.stages.items():
            self._add(self._stages.labels(stage.value), seconds)
        for stage, seconds in (record.ttft_stages or {}).items():
            self._add(self._ttft_stages.labels(stage.value), seconds)
        if record.first_token_s is not None:
            self._observe(self._ttft, record.first_token_s - record.received_s)
        self._observe(self._e2e, record.finished_s - record.received_s)
        self._reuse.add(record)
        for counter, counts in ((self._drafted, record.drafts.drafted), (self._accepted, record.drafts.accepted)):
            for position, count in enumerate(counts, start=1):
                self._add(counter.labels(_bounded(position)), count)
        for length, histogram in record.drafts.by_length.items():
            for accepted, steps in enumerate(histogram):
                if steps:
                    self._add(self._by_length.labels(_bounded(length), _bounded(accepted)), steps)

    def gap(self, seconds: float, tokens: int) -> None:
        """`tokens` tokens were sent `seconds` after the last ones of the same request: one observation per token."""
        if tokens <= 0:
            return
        if 0 <= seconds < math.inf:
            self._itl.observe(seconds / tokens, tokens)
        else:
            self._refused.inc(tokens)

    def engine(self, values: Mapping[str, object], *, replica: int | str = 0, epoch: str | None = None) -> None:
        """Take the newest report of an engine: gauges, and counters that are cumulative since that engine started.

        `epoch` names one life of the engine (its start time or process id). With it, a restart is a change of epoch, and a
        counter that falls within one is refused; without it, a counter that falls is taken to have restarted from zero.
        Names as in GAUGES and COUNTERS; `name/kind` as in HANDOFF_COUNTERS, `name/tier` and `name/tier/codec` as in kv_metrics;
        others and None are left alone.
        """
        label = str(replica)
        seen = self._seen.get(label)
        if seen is None or seen.epoch != epoch:
            seen = self._seen[label] = _Seen(epoch)
        for name, value in values.items():
            base, _, kind = name.partition("/")
            if value is None:
                continue
            if name in self._gauges:
                if isinstance(value, int | float):
                    self._gauges[name].labels(label).set(value)
            elif name in self._counters:
                self._raise_to(self._counters[name].labels(label), seen, name, value)
            elif base in self._labelled_gauges and isinstance(value, int | float):
                self._labelled_gauges[base].labels(*kind.split("/"), label).set(value)
            elif base in self._labelled_counters:
                self._raise_to(self._labelled_counters[base].labels(*kind.split("/"), label), seen, name, value)
            elif base in self._handoffs and kind in _KINDS:
                self._raise_to(self._handoffs[base].labels(kind, label), seen, name, value)

    def engine_gone(self, replica: int | str = 0) -> None:
        """The engine no longer runs: its gauges disappear (unknown, not 0), its counters stay."""
        for gauge in self._gauges.values():
            with suppress(KeyError):
                gauge.remove(str(replica))
        for gauge in self._labelled_gauges.values():
            gauge.remove_by_labels({"replica": str(replica)})

    def _raise_to(self, counter: Counter, seen: "_Seen", name: str, value: object) -> None:
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            self._refused.inc()
            return
        last = seen.last.get(name, 0.0)
        if value < last:
            if seen.epoch is not None:
                self._refused.inc()
                return
            last = 0.0
        seen.last[name] = value
        counter.inc(value - last)

    def _add(self, counter: Counter, amount: float) -> None:
        if math.isfinite(amount) and amount >= 0:
            counter.inc(amount)
        else:
            self._refused.inc()

    def _observe(self, histogram: Histogram, seconds: float) -> None:
        if math.isfinite(seconds) and seconds >= 0:
            histogram.observe(seconds)
        else:
            self._refused.inc()


def _bounded(number: int) -> str:
    """A position or length as a label; what lies beyond POSITIONS is counted together."""
    return str(number) if number <= POSITIONS else "more"


_TIER, _REASON, _CODEC = ("tier",), ("tier", "reason"), ("tier", "codec")
_KINDS = frozenset(kind.value for kind in HandoffKind)


class _Seen:
    """The counters last reported by one engine in one of its lives."""

    __slots__ = ("epoch", "last")

    def __init__(self, epoch: str | None) -> None:
        self.epoch = epoch
        self.last: dict[str, float] = {}
