"""Products with weights, by the faster of the two libraries that PyTorch has on board for processors.

In float32 `torch.nn.functional.linear` calls MKL, which runs at less than half of its speed on processors that are not
Intel's. oneDNN, which PyTorch uses for bfloat16, does not: it takes the same weights as they lie in memory, and gives
the same numbers up to rounding. There is no public switch, so calls are redirected one by one (`ByOneDNN`): no module
is changed, neither ours nor a user's, and nothing is copied that could go stale.

Which library runs depends on the processor alone, so that the same machine gives the same numbers again.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

ROUND_ROWS = 32
"""Products have multiples of so many rows: oneDNN makes a program for every shape that it meets, and keeps it."""


class ByOneDNN(TorchFunctionMode):
    """Within this, `linear` stands in for `torch.nn.functional.linear`."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        redirected = function is F.linear and not torch.compiler.is_compiling()  # a compiler chooses for itself
        return (linear if redirected else function)(*args, **(kwargs or {}))


def linear(
    input: Float[Tensor, "... inner"], weight: Float[Tensor, "outer inner"], bias: Float[Tensor, " outer"] | None = None
) -> Float[Tensor, "... outer"]:
    """As `torch.nn.functional.linear`, which computes whatever oneDNN does not: on other devices, of other types."""
    plain = all(_plain(part) for part in (input, weight, bias) if part is not None)
    if not (plain and onednn_is_faster()) or torch.is_autocast_enabled("cpu"):
        return F.linear(input, weight, bias)
    return _Linear.apply(input, weight, bias)


class _Linear(torch.autograd.Function):
    """Gradients are such products again, and have gradients themselves."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        rows = input.reshape(-1, input.shape[-1])
        lacking = -len(rows) % ROUND_ROWS
        padded = F.pad(rows, (0, 0, 0, lacking)) if lacking else rows
        found = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
        return found[: len(rows)].view(*input.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (output,), (input, weight) = gradients, ctx.saved_tensors
        to_input, to_weight, to_bias = ctx.needs_input_grad
        rows = output.flatten(0, -2)
        return (
            linear(output, weight.t()) if to_input else None,
            linear(rows.t(), input.flatten(0, -2).t()) if to_weight else None,
            rows.sum(0) if to_bias else None,
        )


def _plain(part: Tensor) -> bool:
    """Numbers of 32 bits in the memory of the processor; not quantised, sharded or otherwise special."""
    return (
        part.dtype == torch.float32
        and part.device.type == "cpu"
        and part.layout == torch.strided
        and part.numel() > 0
        and type(part) in (Tensor, nn.Parameter)
    )


@functools.cache
def onednn_is_faster() -> bool:
    """With AVX-512; without it both libraries run at the same speed."""
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
