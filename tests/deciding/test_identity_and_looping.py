"""Token identity between arms, and the mark on text that repeats itself."""

import msgspec

from netgain.deciding.experiment.identity import compare_tokens
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.measuring.quality.repetition import is_looped, looping_share


def seen(arm, record, block=0):
    return Observation(arm=arm, group=0, block=block, record=record)


def test_equal_tokens_hold(make_record):
    found = compare_tokens([seen(BASELINE, make_record()), seen(CANDIDATE, make_record())])
    assert found.holds
    assert found.basis == "token ids"


def test_one_other_token_is_named(make_record):
    found = compare_tokens(
        [seen(BASELINE, make_record("a", output=(1, 2))), seen(CANDIDATE, make_record("a", output=(1, 3)))]
    )
    assert not found.holds
    assert found.differing == ("a",)


def test_a_baseline_that_contradicts_itself_is_told_apart(make_record):
    found = compare_tokens(
        [
            seen(BASELINE, make_record("a", output=(1, 2)), 0),
            seen(BASELINE, make_record("a", output=(1, 3)), 3),
            seen(CANDIDATE, make_record("a", output=(1, 2)), 1),
        ]
    )
    assert found.baseline_differs == ("a",)


def test_repeats_that_were_asked_in_other_words_are_compared_apart(make_record):
    def said(arm, text, output):
        record = make_record("a", output=output)
        return Observation(arm=arm, group=0, block=0, record=record, text=text)

    same = [said(BASELINE, 0, (1,)), said(BASELINE, 1, (2,)), said(CANDIDATE, 0, (1,)), said(CANDIDATE, 1, (2,))]
    found = compare_tokens(same)
    assert (found.holds, found.baseline_differs, found.compared) == (True, (), 1)
    assert compare_tokens([*same[:3], said(CANDIDATE, 1, (1,))]).differing == ("a",)


def test_nothing_compared_does_not_hold(make_record):
    found = compare_tokens([seen(BASELINE, make_record()), seen(CANDIDATE, make_record(error="cut"))])
    assert found.compared == 0
    assert not found.holds


def test_without_ids_the_text_is_compared_and_said_so(make_record):
    bare = msgspec.structs.replace(make_record(), server=None)
    found = compare_tokens([seen(BASELINE, bare), seen(CANDIDATE, bare)])
    assert (found.basis, found.holds) == ("text", True)


def test_loops_of_any_period_are_marked():
    assert looping_share([1, 2, 3, 4, 5] * 6) == 1.0
    assert looping_share([9] * 20) == 1.0
    assert looping_share(list(range(100))) == 0.0
    assert looping_share([]) == 0.0
    assert looping_share([*range(60), *[7, 8] * 10]) == 20 / 80


def test_short_or_twofold_repetition_is_ordinary():
    assert looping_share([1, 1, 1, *range(10, 40)]) == 0.0
    assert looping_share([*range(20), *range(20)]) == 0.0


def test_an_output_loops_when_a_quarter_of_it_does():
    assert is_looped([*range(60), *[7, 8] * 10])
    assert not is_looped([*range(100), *[7, 8] * 10])


def test_answers_are_compared_by_text_where_one_arm_tells_no_tokens(make_record):
    same = [
        Observation(arm=BASELINE, group=0, block=0, record=make_record("p0")),
        Observation(arm=CANDIDATE, group=0, block=1, record=msgspec.structs.replace(make_record("p0"), server=None)),
    ]
    found = compare_tokens(same)
    assert found.basis == "text"
    assert (found.compared, found.differing) == (1, ())


def test_answers_that_were_not_kept_are_not_called_equal(make_record):
    bare = msgspec.structs.replace(make_record("p0"), server=None, text="")
    unknown = [
        Observation(arm=arm, group=0, block=block, record=bare) for block, arm in enumerate((BASELINE, CANDIDATE))
    ]
    assert compare_tokens(unknown).compared == 0
    digests = [
        msgspec.structs.replace(seen, record=msgspec.structs.replace(bare, text_sha256=digest))
        for seen, digest in zip(unknown, ("aa", "bb"), strict=True)
    ]
    assert compare_tokens(digests).differing == ("p0",)
