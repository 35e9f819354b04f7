"""Chooses the kernels a model runs on, and says why."""

from typing import Literal

import torch

from netgain.errors import Unavailable, UsageError
from netgain.serving.model.kernels.compiled import CompiledKernels
from netgain.serving.model.kernels.protocol import Kernels
from netgain.serving.model.kernels.torch_kernels import TorchKernels

Kind = Literal["auto", "compiled", "torch"]


def load_kernels(kind: Kind = "auto", threads: int = 1, device: torch.device | str = "cpu") -> Kernels:
    """`auto` takes the compiled kernels on a CPU with a C++ compiler, else torch; `note` on the result says why
    it is torch.

    `threads` counts the compiled kernels' threads; torch's own number is the caller's to set. Raises UsageError for a kind
    that does not fit, Unavailable if `compiled` is asked for and cannot be built.
    """
    on_cpu = torch.device(device).type == "cpu"
    if kind == "torch":
        return TorchKernels(device, "torch kernels, as asked")
    if kind == "compiled":
        if not on_cpu:
            raise UsageError(f"the compiled kernels run on the CPU, not on {device}: use kernels 'torch' or 'auto'")
        return CompiledKernels(threads)
    if kind != "auto":
        raise UsageError(f"unknown kernels {kind!r}: use 'auto', 'compiled' or 'torch'")
    if not on_cpu:
        return TorchKernels(
            device, f"torch kernels, because the compiled ones run on the CPU and the device is {device}"
        )
    try:
        return CompiledKernels(threads)
    except Unavailable as error:
        reason, *output = str(error).splitlines()  # a compiler's output would fill every page that shows the note
        return TorchKernels(
            device,
            f"torch kernels, because {reason.rstrip(':')}"
            + (" (--set engine.model.kernels=compiled shows its output)" if output else ""),
        )
