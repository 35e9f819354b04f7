import pytest

from netgain.errors import UsageError
from netgain.serving.speculation.registry import PROPOSERS, VERIFIERS, ProposerOptions, build_proposer, build_verifier
from tests.serving.speculation import asking

FOUR = ProposerOptions(k=4)


def test_every_member_can_be_built_by_name():
    for name in PROPOSERS:
        assert len(asking.draft(build_proposer(name, FOUR), [1, 2, 3, 1, 2], 1).tokens) == 1
    for name, kind in VERIFIERS.items():
        assert type(build_verifier(name)) is kind


def test_only_the_coupled_verifier_promises_the_same_tokens():
    assert [name for name in VERIFIERS if build_verifier(name).token_identical] == ["coupled"]
    assert [name for name in VERIFIERS if build_verifier(name).needs_laws] == ["rejection", "block"]


@pytest.mark.parametrize(
    ("build", "name", "nearest"),
    [
        (lambda name: build_proposer(name, FOUR), "n-gram", "'ngram'"),
        (build_verifier, "copuled", "'coupled'"),
        (build_verifier, "rejection-sampling", "'rejection'"),
        (build_verifier, "?", "coupled, rejection, block"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(build, name, nearest):
    with pytest.raises(UsageError, match=nearest):
        build(name)


@pytest.mark.parametrize(
    ("k", "shortest", "longest", "message"),
    [(0, 2, 4, "0 drafts"), (4, 0, 4, "shortest n-gram"), (4, 5, 4, "shorter than the shortest")],
)
def test_settings_that_cannot_work_say_what_to_change(k, shortest, longest, message):
    with pytest.raises(UsageError, match=message):
        build_proposer("ngram", ProposerOptions(k=k, lookup_min=shortest, lookup_max=longest))


def test_members_are_frozen():
    with pytest.raises(TypeError):
        VERIFIERS["other"] = None
