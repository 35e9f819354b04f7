"""KV is coded only where that is sooner than sending it raw."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.link import LinkFit
from netgain.serving.tiers.codecs.adaptive import LearnedRates, Rates, choose

SLOW, FAST = LinkFit(0.001, 20e6, 0.0, 9), LinkFit(0.0, 10e9, 0.0, 9)
INT4 = Rates(ratio=3.0, encode_bytes_per_s=1e9, decode_bytes_per_s=1e9)
DENSE = Rates(ratio=5.0, encode_bytes_per_s=2e8, decode_bytes_per_s=3e8)


def test_a_fast_link_sends_raw_and_a_slow_one_the_densest():
    rates = {"int4": INT4, "cachegen": DENSE}
    assert choose(1e6, FAST, rates) == "raw"
    assert choose(1e6, SLOW, rates) == "cachegen"
    assert choose(1e6, LinkFit(0.0, 2e8, 0.0, 9), rates) == "int4"


@given(st.floats(1.01, 20), st.floats(1e6, 1e11), st.floats(1e6, 1e11), st.floats(1e5, 1e11), st.integers(1, 1 << 30))
def test_what_is_chosen_is_never_slower_than_raw(ratio, encode, decode, bandwidth, size):
    rates = Rates(ratio=ratio, encode_bytes_per_s=encode, decode_bytes_per_s=decode)
    link = LinkFit(0.0, bandwidth, 0.0, 9)
    pays = size / encode + size / ratio / bandwidth + size / decode < size / bandwidth
    assert choose(size, link, {"some": rates}) == ("some" if pays else "raw")
    if abs(bandwidth / rates.break_even_bytes_per_s() - 1) > 1e-6:
        assert pays == (bandwidth < rates.break_even_bytes_per_s())


def test_what_is_not_known_is_tried_to_learn():
    assert choose(1e6, None, {"int4": INT4}) == "int4"
    assert choose(1e6, FAST, {"int4": INT4, "new": None}) == "new"
    assert choose(1e6, None, {}) == "raw"


def test_rates_are_learned_from_use():
    learned = LearnedRates()
    assert learned.rates() is None
    for size in (100_000, 200_000, 300_000, 400_000):
        learned.encoded(size, size // 4, size / 5e8)
    rates = learned.rates()
    assert rates.ratio == 4.0
    assert abs(rates.encode_bytes_per_s / 5e8 - 1) < 0.01
    assert rates.decode_bytes_per_s == rates.encode_bytes_per_s
    for size in (100_000, 200_000, 300_000):
        learned.decoded(size, size / 2e9)
    assert abs(learned.rates().decode_bytes_per_s / 2e9 - 1) < 0.01
