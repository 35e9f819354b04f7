"""How close steps came to what the machine was probed to do: decode against its memory, prefill against its arithmetic."""

from collections.abc import Mapping

import msgspec

from netgain.cost.machine import MachineProbe

CPU = "cpu"


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of an engine have to do, as it says of itself.

    `step_weight_bytes` are read by every step whole. `layer_ops` per computed token and `head_ops` per chosen one (the
    head, and what follows the last layer's attention) are operations of matrix products by the type that the weights are
    kept and multiplied in; attention is not among them. With `windowed` some layer reads only the end of a context.
    """

    device: str
    kernels: str
    step_weight_bytes: int
    kv_token_bytes: int
    layer_ops: dict[str, int]
    head_ops: dict[str, int]
    windowed: bool


class StepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that held decodes and verified drafts alone, and those that held prompt chunks alone, with their wall seconds.
    `context_tokens` sums what each request of each decode step had behind it; `chosen` counts prompts that ended."""

    decode_steps: int = 0
    decode_s: float = 0.0
    decode_context_tokens: int = 0
    prefill_steps: int = 0
    prefill_s: float = 0.0
    prefill_tokens: int = 0
    prefill_chosen: int = 0

    def since(self, before: "StepCounts") -> "StepCounts":
        """What came after `before`."""
        return StepCounts(**{name: getattr(self, name) - getattr(before, name) for name in self.__struct_fields__})


class PhaseLimit(msgspec.Struct, frozen=True, kw_only=True):
    """One phase against the machine: `achieved` and `limit` in `unit` per second, `share` their quotient. What is not known is
    None, with the reason in `missing`."""

    phase: str
    unit: str
    steps: int
    step_s: float | None = None
    achieved: float | None = None
    limit: float | None = None
    share: float | None = None
    missing: str | None = None


def bandwidth_share(step_bytes: float, step_s: float, bytes_per_s: float | None) -> float | None:
    """Bytes that a step reads over the seconds that it takes, as a share of the probed bandwidth; None without a probe."""
    return None if not bytes_per_s or not step_s > 0.0 else step_bytes / step_s / bytes_per_s


def decode_limit(counts: StepCounts, work: StepWork, probe: MachineProbe | None) -> PhaseLimit:
    """Weights and KV that decode steps read, against the probed memory bandwidth."""
    found = PhaseLimit(phase="decode", unit="bytes", steps=counts.decode_steps)
    if not counts.decode_steps or not counts.decode_s > 0.0:
        return msgspec.structs.replace(found, missing="no step held decodes alone")
    step_s = counts.decode_s / counts.decode_steps
    found = msgspec.structs.replace(found, step_s=step_s)
    if work.windowed:
        reason = "some layers read only the end of a context, so the KV that was read is not known"
        return msgspec.structs.replace(found, missing=reason)
    read = work.step_weight_bytes + work.kv_token_bytes * counts.decode_context_tokens / counts.decode_steps
    limit = probe.read_bytes_per_s if probe is not None and work.device == CPU else None
    return msgspec.structs.replace(
        found,
        achieved=read / step_s,
        limit=limit,
        share=bandwidth_share(read, step_s, limit),
        missing=None if limit else _no_limit(work, probe, "memory reads"),
    )


def prefill_limit(counts: StepCounts, work: StepWork, probe: MachineProbe | None) -> PhaseLimit:
    """Matrix products of prompt chunks, against the probed rate of those with weights of the same types."""
    found = PhaseLimit(phase="prefill", unit="operations", steps=counts.prefill_steps)
    if not counts.prefill_steps or not counts.prefill_s > 0.0:
        return msgspec.structs.replace(found, missing="no step held prompts alone")
    found = msgspec.structs.replace(found, step_s=counts.prefill_s / counts.prefill_steps)
    layers, head = counts.prefill_tokens, counts.prefill_chosen
    ops = {name: layers * work.layer_ops.get(name, 0) for name in work.layer_ops}
    for name, one in work.head_ops.items():
        ops[name] = ops.get(name, 0) + head * one
    total = sum(ops.values())
    least_s = _least_seconds(ops, work, probe)
    return msgspec.structs.replace(
        found,
        achieved=total / counts.prefill_s,
        limit=total / least_s if least_s else None,
        share=least_s / counts.prefill_s if least_s else None,
        missing=None if least_s else _no_limit(work, probe, f"{'+'.join(sorted(ops))} products of {work.kernels}"),
    )


def _least_seconds(ops: Mapping[str, int], work: StepWork, probe: MachineProbe | None) -> float | None:
    """What the products would take at their probed rates."""
    if probe is None or work.device != CPU:
        return None
    least_s = 0.0
    for dtype, count in ops.items():
        rate = probe.ops_per_s(dtype, work.kernels)
        if not rate:
            return None
        least_s += count / rate
    return least_s


def _no_limit(work: StepWork, probe: MachineProbe | None, what: str) -> str:
    if work.device != CPU:
        return f"the probe knows the CPU only, and {work.device} computed"
    if probe is None:
        return "this machine was not probed: netgain doctor"
    return f"the probe of {probe.taken} has no {what}: netgain doctor"
