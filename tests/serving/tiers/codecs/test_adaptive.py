"""What a codec is worth is learned while it is used."""

from netgain.serving.tiers.codecs.adaptive import LearnedRates


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
