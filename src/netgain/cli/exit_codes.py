"""Exit codes for scripts, the same for every command that judges. Failures (1) and wrong usage (2) come from their errors."""

DONE = 0  # a verdict was given, the rule holds, there are figures to use
FAILED = 1  # netgain or a server
CANNOT_TELL = 3  # the run proves nothing, or not enough is known
AGAINST = 4  # asked whether all is well (--gate, guard): it is not, so go back or do not deploy
INTERRUPTED = 130


def of_verdict(decision: str, void: bool, gate: bool = False) -> int:
    """Of a verdict that was given; `gate`: it was asked whether the candidate may pass."""
    if void:
        return CANNOT_TELL
    return AGAINST if gate and decision == "reject" else DONE
