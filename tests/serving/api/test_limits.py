"""A server tells what its steps have to do and how many of each kind it ran: enough to hold them against the machine."""

import asyncio
from typing import Any

from netgain.cost.roofline import StepCounts
from netgain.deciding.decide.server import served_model, step_counts
from tests.waiting import wait_for


def test_a_server_tells_the_work_of_its_steps(server: Any) -> None:
    served = asyncio.run(served_model(server.url, {}))
    work = served.work
    assert work is not None
    square = 384 * 384
    assert work.layer_ops == {"f32": 2 * 3 * square}
    assert work.head_ops == {"f32": 2 * (4 + 1) * square}, (
        "a prompt's other tokens end in the last layer's keys and values"
    )
    assert 4 * 8 * square <= work.step_weight_bytes < 4 * 9 * square, "the embedding is not read whole"
    assert (work.device, work.windowed) == ("cpu", False)
    assert work.kernels.startswith("torch")


def test_steps_of_one_kind_are_counted_with_what_they_read(start_server: Any, server_options: Any) -> None:
    with start_server(*server_options) as server:  # that nobody else has asked anything
        before = asyncio.run(step_counts(server.url, {}))
        assert before is not None
        assert server.post("/v1/completions", prompt="zzzzl", max_tokens=21, temperature=0).status == 200

        def counted() -> StepCounts:
            after = asyncio.run(step_counts(server.url, {}))
            assert after is not None
            return after.since(before)

        wait_for(lambda: counted().decode_steps >= 20)  # they come with a heartbeat
        found = counted()
    assert (found.prefill_steps, found.prefill_tokens, found.prefill_chosen) == (1, 5, 1)
    assert found.decode_steps == 20
    assert found.decode_context_tokens == sum(range(6, 26))
    assert 0 < found.decode_s < 30
    assert 0 < found.prefill_s < 30
