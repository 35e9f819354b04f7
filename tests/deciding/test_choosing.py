"""Which technique is tried on which engine: never one without a switch, and a verified switch before an unverified one."""

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
    assert choose((SUFFIX, NGRAM), CATALOGUE, "netgain") is SUFFIX


def test_a_switch_that_started_the_engine_goes_before_one_that_was_only_read():
    assert choose((SUFFIX, NGRAM), CATALOGUE, "vllm") is NGRAM
    assert choose((SUFFIX,), CATALOGUE, "vllm") is SUFFIX


def test_what_is_not_to_be_tried_is_not_chosen():
    assert choose((SUFFIX, NGRAM), {"ngram": CATALOGUE["ngram"]}, "netgain") is NGRAM
    assert choose((), CATALOGUE, "netgain") is None
