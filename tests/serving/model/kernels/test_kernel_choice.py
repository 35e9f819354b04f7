"""load_kernels: what is chosen, and that the reason can be read."""

import pytest

from netgain.errors import UsageError
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.kernels.torch_kernels import TorchKernels


def test_auto_takes_compiled_kernels_on_a_cpu(requires_compiler: list[str]) -> None:
    kernels = load_kernels("auto", 2)
    assert isinstance(kernels, CompiledKernels)
    assert kernels.threads == 2
    assert kernels.name.startswith("cpp-")
    assert kernels.note is None, "nothing that a report has to warn of"


def test_auto_takes_torch_on_another_device_and_says_so() -> None:
    kernels = load_kernels("auto", 2, "meta")
    assert isinstance(kernels, TorchKernels)
    assert kernels.note is not None
    assert "meta" in kernels.note


def test_names_tell_paths_apart(requires_compiler: list[str]) -> None:
    assert load_kernels("torch").name != load_kernels("compiled").name
    assert load_kernels("compiled", 1).name == load_kernels("compiled", 2).name


def test_unfit_choices_are_refused() -> None:
    with pytest.raises(UsageError, match="'auto', 'compiled' or 'torch'"):
        load_kernels("fast")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="CPU"):
        load_kernels("compiled", 1, "cuda")
