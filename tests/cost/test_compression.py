"""KV is coded only where that is sooner than sending it raw."""

from hypothesis import given
from hypothesis import strategies as st

from netgain.cost.compression import Rates, choose
from netgain.cost.link import LinkFit

SLOW, FAST = LinkFit(0.001, 20e6, 0.0, 9), LinkFit(0.0, 10e9, 0.0, 9)
INT4 = Rates(ratio=3.0, encode_bytes_per_s=1e9, decode_bytes_per_s=1e9)
DENSE = Rates(ratio=5.0, encode_bytes_per_s=2e8, decode_bytes_per_s=3e8)


def test_a_fast_link_sends_raw_and_a_slow_one_the_densest():
    rates = {"int4": INT4, "cachegen": DENSE}
    assert choose(1e6, FAST, rates) is None
    assert choose(1e6, SLOW, rates) == "cachegen"
    assert choose(1e6, LinkFit(0.0, 2e8, 0.0, 9), rates) == "int4"


@given(st.floats(1.01, 20), st.floats(1e6, 1e11), st.floats(1e6, 1e11), st.floats(1e5, 1e11), st.integers(1, 1 << 30))
def test_what_is_chosen_is_never_slower_than_raw(ratio, encode, decode, bandwidth, size):
    rates = Rates(ratio=ratio, encode_bytes_per_s=encode, decode_bytes_per_s=decode)
    link = LinkFit(0.0, bandwidth, 0.0, 9)
    pays = size / encode + size / ratio / bandwidth + size / decode < size / bandwidth
    assert choose(size, link, {"some": rates}) == ("some" if pays else None)
    if abs(bandwidth / rates.break_even_bytes_per_s() - 1) > 1e-6:
        assert pays == (bandwidth < rates.break_even_bytes_per_s())


def test_what_is_not_known_is_tried_to_learn():
    assert choose(1e6, None, {"new": None}) == "new"
    assert choose(1e6, FAST, {"int4": INT4, "new": None}) == "new"
    assert choose(1e6, None, {}) is None
    assert choose(1e6, FAST, {}, raw=False) is None


def test_over_a_link_that_nobody_measured_nothing_is_known_to_beat_raw():
    assert choose(1e6, None, {"int4": INT4}) is None
    assert choose(1e6, None, {"int4": INT4}, raw=False) == "int4"


def test_where_raw_is_no_choice_the_soonest_codec_is():
    assert choose(1e6, FAST, {"cachegen": DENSE, "int4": INT4}, raw=False) == "int4"
