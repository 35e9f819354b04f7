"""A price per device-hour becomes cost per token and per request, and unknown stays unknown."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.price import Devices, Price, Served, compared, cost, parse_price
from netgain.errors import UsageError

USD = Price(per_device_hour=2.5, currency="USD")
TWO = Devices(count=2, said_by="as declared")
HOUR = Served(seconds=3600.0, output_tokens=4e6, prompt_tokens=1e6, met_slo=500.0, slo=True)


def served(**changed: object) -> Served:
    fields = {name: getattr(HOUR, name) for name in HOUR.__struct_fields__}
    return Served(**{**fields, **changed})


@pytest.mark.parametrize(
    ("text", "amount", "currency"),
    [
        ("2.49", 2.49, None),
        ("2.49USD", 2.49, "USD"),
        (" 3 eur ", 3.0, "EUR"),
        ("2€", 2.0, "€"),
        ("$0.5", 0.5, "$"),
        ("USD 1e2", 100.0, "USD"),
        ("2EUR", 2.0, "EUR"),
    ],
)
def test_a_price_is_an_amount_with_or_without_a_currency(text, amount, currency):
    assert parse_price(text) == Price(per_device_hour=amount, currency=currency)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0.0USD", "-1", "nan", "inf", "1e400", "1e-400", ".49", "2,49", "USD", "2.49USDX", "2 per hour", "1 2"],
)
def test_what_is_no_price_is_refused_with_its_text(text):
    with pytest.raises(UsageError) as refused:
        parse_price(text)
    assert repr(text) in str(refused.value)
    assert "2.49USD" in str(refused.value)


def test_two_devices_for_an_hour_are_shared_by_what_came_in_it():
    found = cost(USD, TWO, HOUR)
    assert found.paid == 5.0
    assert found.per_million_output_tokens == pytest.approx(1.25)
    assert found.per_million_tokens == pytest.approx(1.0)
    assert found.per_request_within_slo == pytest.approx(0.01)
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("changed", "missing", "said"),
    [
        ({"slo": False, "met_slo": None}, ["per_request_within_slo"], "no SLO was given"),
        ({"met_slo": 0.0}, ["per_request_within_slo"], "no request met the SLO"),
        ({"met_slo": None}, ["per_request_within_slo"], "which requests met the SLO is not known"),
        ({"prompt_tokens": None}, ["per_million_tokens"], "how many prompt tokens were read is not known"),
        (
            {"output_tokens": None},
            ["per_million_output_tokens", "per_million_tokens"],
            "how many output tokens came is",
        ),
        ({"output_tokens": 0.0}, ["per_million_output_tokens"], "no output token came"),
    ],
)
def test_what_is_unknown_is_none_with_the_reason(changed, missing, said):
    found = cost(USD, TWO, served(**changed))
    costs = ("per_million_output_tokens", "per_million_tokens", "per_request_within_slo")
    assert [name for name in costs if getattr(found, name) is None] == missing
    assert said in found.unknown[0]
    assert found.paid == 5.0


def test_without_devices_or_time_nothing_is_known():
    for found in (cost(USD, Devices(count=None, said_by="-"), HOUR), cost(USD, TWO, served(seconds=0.0))):
        assert (found.paid, found.per_million_output_tokens, found.per_request_within_slo) == (None, None, None)
        assert len(found.unknown) == 1


def test_ratios_are_candidate_over_baseline_and_unknown_where_one_side_is():
    costs = compared(cost(USD, TWO, HOUR), cost(USD, TWO, served(output_tokens=8e6, met_slo=0.0)))
    assert costs.ratios.per_million_output_tokens == pytest.approx(0.5)
    assert costs.ratios.per_million_tokens == pytest.approx(5 / 9)
    assert costs.ratios.per_request_within_slo is None


@pytest.mark.parametrize(
    ("price", "amount", "text"),
    [
        (USD, 1234.567, "1,234.57 USD"),
        (USD, 0.412345, "0.412 USD"),
        (USD, 0.0000213, "0.0000213 USD"),
        (parse_price("$1"), 0.05, "$0.0500"),
        (parse_price("1"), 2.0, "2.00"),
        (USD, None, "unknown"),
    ],
)
def test_amounts_are_written_with_their_currency_and_never_rounded_to_nothing(price, amount, text):
    assert price.written(amount) == text


@given(
    amount=st.floats(1e-6, 1e6),
    devices=st.integers(1, 10_000),
    seconds=st.floats(1e-3, 1e7),
    tokens=st.floats(1.0, 1e12),
    times=st.floats(1.01, 100.0),
)
def test_cost_grows_with_price_devices_and_time_and_falls_with_tokens(amount, devices, seconds, tokens, times):
    def each(price: float, count: int, wall_s: float, came: float) -> float:
        found = cost(
            Price(per_device_hour=price),
            Devices(count=count, said_by="-"),
            served(seconds=wall_s, output_tokens=came),
        ).per_million_output_tokens
        assert found is not None
        return found

    plain = each(amount, devices, seconds, tokens)
    assert plain > 0.0
    assert each(amount * times, devices, seconds, tokens) == pytest.approx(plain * times)
    assert each(amount, 2 * devices, seconds, tokens) == pytest.approx(plain * 2)
    assert each(amount, devices, seconds * times, tokens) == pytest.approx(plain * times)
    assert each(amount, devices, seconds, tokens * times) == pytest.approx(plain / times)
    assert math.isfinite(plain)
