"""Limits per key on a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.serving.api.auth import ANONYMOUS, Identity
from netgain.serving.api.errors import ApiError
from netgain.serving.api.keys import KeyLimits
from netgain.serving.api.quota import Bucket, Quotas


class Hand:
    """A clock that stands until it is set."""

    now_s = 100.0

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def identity(key_id: str = "k", **limits: int) -> Identity:
    return Identity(tenant="t", key_id=key_id, operator=False, limits=KeyLimits(**limits))


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    assert caught.value.status == 429
    return caught.value


def test_requests_at_once_are_limited_per_key_and_free_when_they_leave():
    quotas = Quotas(Hand())
    first = quotas.enter(identity(max_in_flight=1))
    assert refused(lambda: quotas.enter(identity(max_in_flight=1))).detail.code == "concurrency_limit_exceeded"
    quotas.enter(identity("other", max_in_flight=1))
    first.leave()
    quotas.enter(identity(max_in_flight=1))


def test_the_time_to_retry_after_is_when_the_bucket_has_it():
    clock = Hand()
    quotas = Quotas(clock)
    who = identity(requests_per_minute=6)  # one every ten seconds
    for _ in range(6):
        quotas.enter(who)
    error = refused(lambda: quotas.enter(who))
    assert error.headers["retry-after"] == "10"
    clock.now_s += 9.5
    assert refused(lambda: quotas.enter(who)).headers["retry-after"] == "1"
    clock.now_s += 0.5
    quotas.enter(who)


def test_tokens_are_set_aside_before_and_charged_as_used():
    clock = Hand()
    quotas = Quotas(clock)
    who = identity(tokens_per_minute=600)
    first = quotas.enter(who)
    first.reserve(500)
    second = quotas.enter(who)
    error = refused(lambda: second.reserve(200))  # 100 are left, 10 come back per second
    assert (error.headers["retry-after"], error.detail.code) == ("10", "tokens_limit_exceeded")
    first.settle(50)
    first.leave()
    second.reserve(200)
    second.leave()  # it never ran: nothing is charged
    assert dict(quotas.enter(who).headers())[b"x-ratelimit-remaining-tokens"] == b"550"


def test_a_request_larger_than_the_bucket_needs_the_full_bucket_and_leaves_a_debt():
    clock = Hand()
    quotas = Quotas(clock)
    who = identity(tokens_per_minute=60)
    large = quotas.enter(who)
    large.reserve(1000)
    large.settle(120)
    large.leave()
    error = refused(lambda: quotas.enter(who).reserve(1))
    assert error.headers["retry-after"] == "61"


def test_a_tighter_limit_holds_at_once_and_what_was_used_stays_used():
    quotas = Quotas(Hand())
    for _ in range(5):
        quotas.enter(identity(requests_per_minute=10))
    refused(lambda: quotas.enter(identity(requests_per_minute=5)))


def test_nobody_is_limited_without_a_key():
    quotas = Quotas(Hand())
    for _ in range(100):
        admission = quotas.enter(ANONYMOUS)
        admission.reserve(10**9)
    assert admission.headers() == []


@given(
    per_minute=st.integers(1, 10**6),
    steps=st.lists(st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), max_size=20),
    amount=st.floats(0, 1e6),
)
def test_after_the_told_wait_the_amount_is_there(per_minute, steps, amount):
    bucket = Bucket(per_minute, 0.0)
    now_s = 0.0
    for passed_s, taken in steps:
        now_s += passed_s
        bucket.take(taken, now_s)
        assert bucket.level(now_s) <= per_minute
    now_s += bucket.wait_s(amount, now_s)
    assert bucket.level(now_s) >= min(amount, per_minute) - 1e-6 * per_minute - 1e-6


def test_a_key_bounds_how_urgent_a_request_may_be():
    assert ANONYMOUS.priority(-5) == -5
    assert ANONYMOUS.priority(None) == 0
    batch = identity(priority_floor=3)
    assert batch.priority(None) == 3
    assert batch.priority(7) == 7
    with pytest.raises(ApiError, match="priority is 2, the most urgent that this API key may ask for is 3"):
        batch.priority(2)
    assert identity(priority_floor=-2).priority(None) == 0


def test_tenants_never_share_a_salt_and_keys_of_one_tenant_do():
    salts = {
        Identity(tenant=tenant, key_id=key_id).salt(salt)
        for tenant, key_id in ((None, None), ("a", "1"), ("a", "2"), ("ab", "3"), ("b", "4"))
        for salt in (None, "a", "b", "ab")
    }
    assert len(salts) == 4 * 4
    assert ANONYMOUS.salt(None) == b""
