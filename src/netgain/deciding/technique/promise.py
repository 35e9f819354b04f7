"""What a technique promises of its answers on one engine, which may be less than the technique itself could keep."""

from netgain.deciding.technique.kind import Kind
from netgain.measuring.observe.names import Engine


def promised_on(kind: Kind, engine: Engine) -> Kind:
    """Only netgain verifies drafts with the same numbers, and samples them with the same randoms, as it would have without them.
    Elsewhere a step of several rows rounds differently and drafts are accepted by chance of their own: greedy answers are equal
    but for near-ties, sampled ones follow the same law."""
    return "law-preserving" if kind == "token-identical" and engine != "netgain" else kind
