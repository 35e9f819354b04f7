"""Where two outputs part."""

from netgain.measuring.quality.identity import compare_outputs


def test_equal_outputs_are_identical() -> None:
    assert compare_outputs([1, 2, 3], (1, 2, 3)).identical
    assert compare_outputs([], []).identical


def test_the_first_difference_is_found() -> None:
    assert compare_outputs([1, 2, 3], [1, 5, 3]).first_difference == 1


def test_a_beginning_differs_where_it_ends() -> None:
    comparison = compare_outputs("abc", "abcde")
    assert (comparison.first_difference, comparison.left_tokens, comparison.right_tokens) == (3, 3, 5)
