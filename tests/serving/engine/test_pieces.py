"""Prompts that are cut where pieces end: a step holds one piece of each, however small its budget, and others go on."""

from netgain.ledger.clock import VirtualClock
from netgain.serving.blocks.pool import BlockPool
from netgain.serving.engine.scheduler import Scheduler
from netgain.serving.engine.sequence import Sequence


def scheduler(budget: int = 48) -> Scheduler:
    return Scheduler(
        BlockPool(600),
        VirtualClock(),
        block_tokens=8,
        max_batch_tokens=budget,
        max_running=8,
        max_waiting=8,
        max_length=4000,
    )


def test_a_step_holds_one_piece_and_decodes_go_on_beside_it() -> None:
    one = scheduler()
    decoding, cut = Sequence("decoding", 5, 100, []), Sequence("cut", 1300, 1310, [], piece=512)
    one.add(decoding)
    (work,) = one.schedule().work
    one.commit(work, 1)
    one.add(cut)
    pieces = []
    while not pieces or pieces[-1][1] < 1300:
        plan = one.schedule()
        assert [work.sequence.id for work in plan.work] == ["decoding", "cut"]
        assert plan.tokens <= 1 + 512
        for work in plan.work:
            one.commit(work, int(work.samples))
        pieces.append((plan.work[1].start, cut.computed))
        one.check()
    assert pieces == [(0, 512), (512, 1024), (1024, 1300)]


def test_other_prompts_take_turns_with_one_that_is_cut() -> None:
    one = scheduler()
    for name, piece in (("cut", 512), ("plain", 0)):
        one.add(Sequence(name, 1000, 1010, [], piece=piece))
    computed = []
    for _ in range(3):
        plan = one.schedule()
        for work in plan.work:
            one.commit(work, int(work.samples))
        computed.append({work.sequence.id: work.count for work in plan.work})
    assert computed[:2] == [{"cut": 512}, {"cut": 488}]
    assert "plain" in computed[2]
