"""What a request must do to count as good."""

import math
from dataclasses import dataclass, field

import pytest

from netgain.errors import UsageError
from netgain.measuring.workload.slo import SLO, Target, parse_slo


@dataclass
class Request:
    ok: bool = True
    ttft_s: float | None = 0.2
    tpot_s: float | None = 0.02
    e2e_s: float = 1.0
    gaps: list[tuple[float, int]] = field(default_factory=list)

    def token_gaps(self) -> list[tuple[float, int]]:
        return self.gaps


def test_texts_are_read_and_written() -> None:
    slo = parse_slo("ttft=500ms, itl.p99<=50ms,e2e=2s")
    assert slo == SLO((Target("ttft", 0.5), Target("itl", 0.05, 0.99), Target("e2e", 2.0)))
    assert parse_slo(str(slo)) == slo


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not understood"),
        ("ttft", "METRIC=TIME"),
        ("ttft=500", "units us, ms, s"),
        ("speed=1s", "'speed' is unknown; use one of ttft"),
        ("ttft=1s,ttft=2s", "twice"),
        ("ttft.p100=1s", "between 0 and 1"),
        ("ttft=0ms", "must be positive"),
    ],
)
def test_what_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_slo(text)


def test_a_request_meets_all_targets_or_not() -> None:
    slo = parse_slo("ttft=300ms,tpot=30ms,e2e=2s")
    assert slo.met_by(Request()) is True
    assert slo.met_by(Request(ttft_s=0.31)) is False
    assert slo.met_by(Request(tpot_s=0.031)) is False
    assert slo.met_by(Request(tpot_s=None)) is True  # one token
    assert slo.met_by(Request(ttft_s=None)) is None  # no token: not judged
    assert slo.met_by(Request(ttft_s=None, e2e_s=3.0)) is False


def test_a_failure_meets_nothing() -> None:
    assert parse_slo("itl=1s").met_by(Request(ok=False, ttft_s=math.inf, tpot_s=math.inf, e2e_s=math.inf)) is False


def test_itl_is_judged_over_the_tokens_of_the_request() -> None:
    slo = parse_slo("itl.p90=50ms")
    assert slo.met_by(Request(gaps=[(0.01, 9), (0.2, 1)])) is True
    assert slo.met_by(Request(gaps=[(0.01, 8), (0.2, 2)])) is False
    assert slo.met_by(Request(gaps=[])) is True


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("ttft=1s,itl=50ms", None),
        ("ttft=1s,tpot=50ms", None),
        ("itl=50ms,e2e=9s", None),
        ("ttft=1s", "pace of the tokens after the first"),
        ("itl=50ms,tpot=40ms", "wait for the first token"),
    ],
)
def test_what_an_slo_leaves_free_is_said(text: str, free: str | None) -> None:
    assert parse_slo(text).leaves_free == free
