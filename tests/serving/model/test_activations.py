"""What activations are rounded to is a setting: valid with stated types of weights, told apart wherever bits are, and without any
rounding a quantised file computes what its numbers in float32 do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from netgain.errors import UsageError
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import LoadedModel, load_model

TOKENS = [7, 3, 250, 9, 9, 41, 120, 33]


@pytest.fixture(params=["torch", "compiled"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == "compiled":
        request.getfixturevalue("requires_compiler")
    return load_kernels(request.param, 2)


def loaded(path: Path, dtype: str, activations: str, kernels: Kernels | None = None) -> LoadedModel:
    return load_model(path, dtype, kernels or load_kernels("torch"), activations=activations)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_quantised_file_with_float32_activations_has_the_bits_of_its_numbers_in_float32(
    tiny: Callable[..., Any],
    write_gguf: Callable[..., Path],
    run: Callable[..., torch.Tensor],
    kernels: Kernels,
    kind: str,
) -> None:
    path = write_gguf(tiny().reference, kind)
    plain, exact = loaded(path, "fp32", "auto", kernels), loaded(path, "auto", "fp32", kernels)
    assert torch.equal(run(exact, TOKENS), run(plain, TOKENS))
    assert exact.model.weight_bytes < plain.model.weight_bytes
    assert (exact.computed, exact.activations) == ((f"{kind} x fp32",), ("fp32",))


def test_bf16_activations_stay_close_to_float32_ones(
    tiny: Callable[..., Any], run: Callable[..., torch.Tensor], kernels: Kernels
) -> None:
    folder = tiny().folder
    plain, rounded = (run(loaded(folder, "bf16", used, kernels), TOKENS) for used in ("fp32", "bf16"))
    assert 0 < float((rounded - plain).norm()) < 0.03 * float(plain.norm())


def test_kv_under_other_activations_is_never_taken_for_this(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf(tiny().reference, "Q4_0")
    forms = (("auto", "auto"), ("auto", "fp32"), ("bf16", "auto"), ("bf16", "bf16"))
    models = [loaded(path, *form) for form in forms]
    namespaces = {model.namespace(torch.bfloat16) for model in models}
    assert len(namespaces) == len(forms)
    assert [model.activations for model in models] == [("int8",), ("fp32",), ("fp32",), ("bf16",)]
    assert models[0].layer_ops.keys() == {"q4_0"}
    assert models[3].layer_ops.keys() == models[3].head_ops.keys() == {"bf16 x bf16"}


@pytest.mark.parametrize(("dtype", "own"), [("auto", "int8"), ("bf16", "fp32"), ("fp32", "fp32"), ("int8", "int8")])
def test_naming_the_activations_that_auto_takes_changes_nothing(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], dtype: str, own: str
) -> None:
    path = write_gguf(tiny().reference, "Q4_0")
    assert loaded(path, dtype, own).namespace(torch.bfloat16) == loaded(path, dtype, "auto").namespace(torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "activations", "said"),
    [
        (
            "fp32",
            "bf16",
            r"bf16 activations need bf16 weights \(dtype bf16\), and .*weight is kept in F32: .* auto or fp32",
        ),
        ("fp16", "bf16", "bf16 activations need bf16 weights"),
        ("int8", "bf16", r"and \S+ is kept in Q8_0"),
        ("auto", "bf16", "is kept in Q4_0"),
        (
            "bf16",
            "int8",
            r"int8 activations need weights in blocks \(dtype int8 or int4\), and .* kept in BF16: .* fp32 or bf16",
        ),
        ("fp32", "int8", "int8 activations need weights in blocks"),
        ("auto", "int4", "activations 'int4' are not supported; supported: auto, fp32, bf16, int8"),
    ],
)
def test_activations_that_do_not_go_with_the_weights_are_refused_in_one_line(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], dtype: str, activations: str, said: str
) -> None:
    path = write_gguf(tiny().reference, "Q4_0")
    with pytest.raises(UsageError, match=said) as error:
        loaded(path, dtype, activations)
    assert "\n" not in str(error.value)


def test_an_embedding_that_is_no_head_may_be_of_any_type(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], run: Callable[..., torch.Tensor]
) -> None:
    """Its rows are read and never multiplied."""
    path = write_gguf(tiny().reference, "BF16", other={"token_embd": "Q8_0"})
    model = loaded(path, "auto", "bf16")
    assert model.computed == ("BF16 x bf16", "Q8_0")
    assert model.activations == ("bf16",)
    assert bool(run(model, TOKENS).isfinite().all())
