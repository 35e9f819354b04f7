"""Which technique is tried on which engine: never one without a switch, and first one that starts the engine as it
is."""

from netgain.deciding.decide.candidates import choose
from netgain.deciding.diagnose.hypotheses import Hypothesis
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.prediction import Prediction


def hypothesis(name, net_s, setting):
    prediction = Prediction(
        technique=name,
        setting=setting,
        off_is_better=False,
        speedup_e2e=1.1,
        low=None,
        high=None,
        speedup_tpot=None,
        speedup_mean=1.1,
        saved_s={},
        spent_s={},
        net_s=net_s,
        committed_per_step=None,
        drafts=None,
        considered=(),
        basis="",
        not_covered=(),
    )
    return Hypothesis(
        technique=name, title=name, relieves="", brings="", prediction=prediction, cannot_apply=None, hints=()
    )


SUFFIX = hypothesis("suffix", 2.0, {"k": 8, "factor": 1.0})
NGRAM = hypothesis("ngram", 1.0, {"k": 4, "lookup_min": 2, "lookup_max": 3})


def test_on_netgain_the_highest_predicted_gain_is_tried():
    assert choose((SUFFIX, NGRAM), CATALOGUE, "netgain") == (SUFFIX,)


def test_a_switch_that_starts_the_engine_as_it_is_goes_before_one_that_needs_a_package():
    assert choose((SUFFIX, NGRAM), CATALOGUE, "vllm") == (NGRAM,)
    assert choose((SUFFIX,), CATALOGUE, "vllm") == (SUFFIX,)


def test_what_is_not_to_be_tried_is_not_chosen():
    assert choose((SUFFIX, NGRAM), {"ngram": CATALOGUE["ngram"]}, "netgain") == (NGRAM,)
    assert choose((), CATALOGUE, "netgain") == ()


def test_of_several_the_best_predicted_are_tried_and_those_that_need_a_package_last():
    assert choose((SUFFIX, NGRAM), CATALOGUE, "netgain", 2) == (SUFFIX, NGRAM)
    assert choose((SUFFIX, NGRAM), CATALOGUE, "vllm", 2) == (NGRAM, SUFFIX)
    assert choose((SUFFIX, NGRAM), CATALOGUE, "netgain", 9) == (SUFFIX, NGRAM)
