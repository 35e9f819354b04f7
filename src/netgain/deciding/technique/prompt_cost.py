"""What computing a prompt costs on one server, and how that is known."""

import msgspec

from netgain.cost.step_cost import StepCost


class PromptCost(msgspec.Struct, frozen=True, kw_only=True):
    """`cost` by the tokens of a prompt; None with the reason in `missing`. `basis`: how it was measured."""

    cost: StepCost | None
    missing: str | None
    basis: str
