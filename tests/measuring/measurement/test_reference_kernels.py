"""A netgain server without its compiled kernels is said to be one; nothing else is."""

import pytest

from netgain.measuring.measurement.reference_kernels import reference_kernels

TOLD = {
    "kernels": "torch-2.13.0-cpu-v3",
    "kernels_note": "torch kernels, because there is no compiler",
    "device": "cpu",
}


def test_the_kernels_and_the_reason_are_named():
    said = reference_kernels("netgain", TOLD)
    assert "torch-2.13.0-cpu-v3" in said
    assert "because there is no compiler" in said


@pytest.mark.parametrize("note", [None, "", "null"])
def test_a_server_that_gives_no_reason_is_said_nevertheless(note):
    assert "does not say why" in reference_kernels("netgain", {**TOLD, "kernels_note": note})


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("netgain", {**TOLD, "kernels": "compiled-avx2-v9", "kernels_note": None}),
        ("netgain", {**TOLD, "kernels": "torch-2.13.0-cuda-v3", "device": "cuda:0"}),
        ("netgain", {}),
        ("vllm", TOLD),
        (None, TOLD),
    ],
)
def test_compiled_kernels_gpus_and_other_engines_need_no_caveat(engine, told):
    assert reference_kernels(engine, told) is None
