"""Exit codes that scripts rely on."""

import pytest

from netgain.cli.exit_codes import of_verdict


@pytest.mark.parametrize(
    ("decision", "void", "gate", "code"),
    [
        ("adopt", False, False, 0),
        ("reject", False, False, 0),
        ("inconclusive", False, True, 0),
        ("adopt", False, True, 0),
        ("reject", False, True, 4),
        ("inconclusive", True, False, 3),
        ("inconclusive", True, True, 3),
    ],
)
def test_a_void_run_cannot_tell_and_only_a_gate_fails_on_a_rejection(decision, void, gate, code):
    assert of_verdict(decision, void, gate) == code
