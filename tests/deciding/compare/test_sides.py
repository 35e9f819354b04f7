"""What differs between the sides, of servers that were started and of those that ran already. SGLang's fields are named as in
sgl-project/sglang at d315eb725044 (python/sglang/srt/server_args.py), which was read, not run."""

from netgain.deciding.compare.meeting import Known
from netgain.deciding.compare.outcome import Side
from netgain.deciding.compare.sides import what_differs
from netgain.deciding.experiment.arms.confounders import ArmSetup
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.result import Server
from netgain.measuring.measurement.server import Greeted


def known(url, said, engine="sglang", setup=None):
    server = Server(url=url, model="m", engine=engine, said=said)
    return Known(
        ask=Ask(url=url, workload="chat"),
        greeted=Greeted(server=server, base=url, metrics_url=None),
        traits={},
        side=Side(where=(url,), model="m", engine=engine, version=None, told={}, command=None),
        setup=setup,
    )


def test_two_running_servers_that_are_set_up_differently_are_said_to():
    before = known("http://a:1", {"speculative_algorithm": "None", "max_running_requests": 256, "port": 1})
    after = known("http://b:2", {"speculative_algorithm": "NGRAM", "max_running_requests": 48, "port": 2})
    (said,) = what_differs({"baseline": before, "candidate": after})
    assert "max_running_requests (256 in the baseline, 48 in the candidate)" in said
    assert "speculative" not in said.partition(":")[2]
    assert "port" not in said


def test_a_running_server_that_tells_nothing_is_said_to():
    (said,) = what_differs({"baseline": known("http://a:1", {}), "candidate": known("http://b:2", {})})
    assert (
        said
        == "sglang did not tell its effective configuration, so differences between the arms could not be looked for."
    )


def test_a_started_and_a_running_server_are_compared_by_what_both_tell():
    setup = ArmSetup(name="baseline", flags=(), configuration={"field.only.the.log.tells": "1"})
    sides = {"baseline": known("http://a:1", {"a": 1}, setup=setup), "candidate": known("http://b:2", {"a": 1})}
    assert what_differs(sides) == ()


def test_engines_that_differ_and_one_server_beside_itself_have_nothing_to_compare():
    one, other = known("http://a:1", {"a": 1}), known("http://b:2", {"a": 2}, engine="vllm")
    assert what_differs({"baseline": one, "candidate": other}) == ()
    assert what_differs({"baseline": one, "candidate": known("http://a:1", {"a": 3})}) == ()
