from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.serving.engine.noise import PositionNoise
from netgain.serving.engine.protocols import Draft, Target
from netgain.serving.runtime.config import EngineConfig
from netgain.serving.runtime.config_file import check_config
from netgain.serving.speculation.synthetic import SyntheticProposer, SyntheticVerifier
from tests.serving.speculation import asking
from tests.serving.speculation.test_verify import branches


@given(st.lists(st.fractions(0, 1), min_size=1, max_size=4), st.integers(1, 5))
def test_survival_by_position_is_exactly_what_was_given(rates, k):
    rates = sorted(rates, reverse=True)
    target = Target((9,) * (k + 1), None)
    survived = [Fraction(0)] * k
    for committed, weight in branches(lambda noise: SyntheticVerifier(rates).verify(Draft((1,) * k), target, noise, 0)):
        for position in range(len(committed) - 1):
            survived[position] += weight
    assert survived == [*rates, *[Fraction(0)] * k][:k]


def test_every_step_commits_kept_drafts_and_one_choice_of_the_target():
    verifier, draft = SyntheticVerifier([0.8, 0.5, 0.5]), Draft((1, 1, 1, 1))
    lengths = [
        len(verifier.verify(draft, Target((5, 6, 7, 8, 9), None), PositionNoise(seed, 0), 3)) for seed in range(2000)
    ]
    assert set(lengths) == {1, 2, 4}
    assert np.mean(lengths) == pytest.approx(1 + 0.8 + 0.5 + 0.5, abs=0.12)


def test_drafts_are_always_as_many_as_may_be():
    assert asking.draft(SyntheticProposer(4), [1, 2, 3]).tokens == (3, 3, 3, 3)
    assert asking.draft(SyntheticProposer(4), [1, 2, 3], limit=2).tokens == (3, 3)


@pytest.mark.parametrize("rates", [[], [0.5, 0.6], [1.1], [-0.1], [0.5, -0.1]])
def test_rates_that_cannot_be_survival_are_refused(rates):
    with pytest.raises(ValueError, match="rates fall"):
        SyntheticVerifier(rates)


@pytest.mark.parametrize(
    ("speculation", "message"),
    [
        ({"method": "synthetic"}, "synthetic_rates"),
        ({"method": "ngram", "synthetic_rates": [0.5]}, "synthetic_rates"),
        ({"synthetic_rates": [0.5]}, "synthetic_rates"),
        ({"method": "synthetic", "synthetic_rates": [0.5, 0.7]}, "rates fall"),
        ({"method": "synthetic", "synthetic_rates": [0.5], "verifier": "block"}, "verifier"),
    ],
)
def test_it_is_never_on_by_accident(speculation, message):
    with pytest.raises(UsageError, match=message):
        check_config(EngineConfig, {"speculation": speculation})


def test_the_model_that_is_served_says_so_in_its_name(chain_model):
    from netgain.ledger.clock import WallClock
    from netgain.serving.runtime.build import build_engine

    tree = {
        "model": {"source": str(chain_model.folder), "kernels": "torch"},
        "cache": {"kv_tokens": 4096},
        "speculation": {"method": "synthetic", "synthetic_rates": [0.9]},
    }
    built = build_engine(EngineConfig.model_validate(tree), WallClock())
    built.engine.close()
    assert built.info["model"].endswith("-synthetic-acceptance")
    assert "not the model's" in built.info["settings_note"]
