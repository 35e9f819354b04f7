"""Deciding at one load or several: what is expected of each before, and which observations details are of."""

from collections.abc import Mapping, Sequence

import msgspec

from netgain.deciding.decide.planning import measuring_s
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.design import Design
from netgain.deciding.experiment.observation import Observation
from netgain.deciding.technique.facts import Facts
from netgain.deciding.technique.prediction import Prediction, Setting
from netgain.deciding.technique.protocol import Technique
from netgain.wording import count


def detailed(observations: Sequence[Observation], design: Design) -> tuple[Observation, ...]:
    """Those that the details of a verdict are of: all of them, or those of the lowest load."""
    if not design.loads:
        return tuple(observations)
    return tuple(seen for seen in observations if design.load_of(seen.group) == design.concurrency)


def predict_loads(chosen: Technique, facts: Facts, loads: list[int], setting: Setting) -> Mapping[int, float | None]:
    """The predicted speedup of one setting at each load, from the traffic recorded at the lowest and what steps of each batch
    cost. None where that setting was not predicted."""
    return {load: _of(chosen.predict(msgspec.structs.replace(facts, concurrency=load)), setting) for load in loads}


def _of(prediction: Prediction, setting: Setting) -> float | None:
    return next((one.speedup_e2e for one in prediction.considered if one.setting == setting), None)


def announcement(design: Design, facts: Facts) -> str:
    """What is about to be measured and how long that takes, also where the design may grow."""
    fewest = design.fewest

    def minutes(part: Design) -> str:
        return f"{measuring_s(part, facts.decomposition, facts.step_cost, facts.concurrency) / 60.0:.1f} min"

    starts = f" over {count(fewest.starts, 'server start')}" if fewest.starts > 1 else ""
    told = f"about {minutes(fewest)}"
    if fewest is not design:
        told += f"; up to {design.starts} starts and {minutes(design)} where noise is large"
    return f"experiment: {count(len(fewest.groups), 'group')} of {sizes(fewest)}{starts}, servers in turn ({told})"


def sizes(design: Design) -> str:
    """How many prompts a group holds, in words."""
    found = sorted({len(group) for group in design.groups})
    return count(found[0], "prompt") if len(found) == 1 else f"{found[0]} to {found[-1]} prompts"


def blocks_of(blocks: Sequence[Block], observations: Sequence[Observation]) -> list[Block]:
    """The blocks in which these requests were sent."""
    wanted = {seen.block for seen in observations}
    return [block for block in blocks if block.index in wanted]
