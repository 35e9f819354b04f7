"""Which eviction policy and which admission keep more of what is asked for again, on a trace of real conversations, by blocks.

python -m benchmarks.eviction TRACE [--json FILE]. TRACE is in Mooncake's form: a JSON object a line, with `hash_ids`, the
blocks of 512 tokens that a prompt consists of. Each prompt looks up its longest prefix that is kept and stores the rest, as
the engine does. `{policy}_{n}_hit_rate`: blocks found of blocks asked for, in a tier that holds n % of all different blocks
of the trace; `ideal_hit_rate`: in one that holds them all. `{policy}_operations_per_s`: of the bookkeeping alone.
`{policy}_second_use_{n}_hit_rate` and `_stored`: the same where the tier takes a block only when it is computed for the
second time (`?admit=second-use`), and blocks stored for each that is stored without; `{policy}_second_use_ideal_hit_rate`: with
room for all.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import _report
from netgain.serving.tiers.admission import Admission, SecondUse
from netgain.serving.tiers.eviction import POLICIES, Eviction

PERCENT = (1, 2, 5, 10, 20, 50)
BLOCK_BYTES = 1


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("trace", type=Path)
    options = parser.parse_args()
    prompts = read(options.trace)
    different = len({block for prompt in prompts for block in prompt})
    figures: dict[str, _report.Figure] = {
        "prompts": len(prompts),
        "blocks": sum(map(len, prompts)),
        "different_blocks": different,
    }
    started_s = time.perf_counter()
    figures["ideal_hit_rate"] = hit_rate(prompts, POLICIES["lru"](different * BLOCK_BYTES))
    figures["ideal_replay_s"] = time.perf_counter() - started_s
    for name, policy in POLICIES.items():
        started_s = time.process_time()
        for percent in PERCENT:
            figures[f"{name}_{percent}_hit_rate"] = hit_rate(prompts, policy(different * BLOCK_BYTES * percent // 100))
        spent_s = time.process_time() - started_s
        figures[f"{name}_second_use_ideal_hit_rate"] = replay(
            prompts, policy(different * BLOCK_BYTES), SecondUse()
        ).hit_rate
        for percent in PERCENT:
            room = different * BLOCK_BYTES * percent // 100
            chosen, everything = replay(prompts, policy(room), SecondUse()), replay(prompts, policy(room))
            figures[f"{name}_second_use_{percent}_hit_rate"] = chosen.hit_rate
            figures[f"{name}_second_use_{percent}_stored"] = chosen.stored / everything.stored
        figures[f"{name}_operations_per_s"] = len(PERCENT) * sum(map(len, prompts)) / spent_s
    _report.write(options.json, figures, title="eviction")


def read(trace: Path) -> list[list[bytes]]:
    """The prompts of a trace as keys of blocks."""
    with trace.open() as lines:
        return [[block.to_bytes(8, "little") for block in json.loads(line)["hash_ids"]] for line in lines]


class Replayed(NamedTuple):
    """`hit_rate`: the share of blocks found; `stored`: how many blocks were written."""

    hit_rate: float
    stored: int


def hit_rate(prompts: Sequence[Sequence[bytes]], kept: Eviction) -> float:
    return replay(prompts, kept).hit_rate


def replay(prompts: Sequence[Sequence[bytes]], kept: Eviction, admission: Admission | None = None) -> Replayed:
    """What a prompt asks for is used from its end to its start, so that the head of a
    prefix, without which its tail is worth nothing, is evicted last."""
    found = asked = stored = 0
    for prompt in prompts:
        hits = next((index for index, block in enumerate(prompt) if block not in kept), len(prompt))
        found += hits
        asked += len(prompt)
        for block in reversed(prompt):
            if block in kept:
                kept.touch(block)
            elif admission is None or admission.computed(block):
                kept.add(block, BLOCK_BYTES)
                stored += 1
    return Replayed(found / asked, stored)


if __name__ == "__main__":
    main()
