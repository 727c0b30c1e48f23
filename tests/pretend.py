"""A pretend device: an Apple GPU as far as torch's rules go, on any machine.

Its tensors hold CPU tensors, so every number is the CPU's to the last digit. It refuses what mps refuses: float64 in
whatever form (casting on the way to the CPU casts on the device), and tensors of the CPU among its own, except indices
and numbers without dimensions.
"""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
INDEXING = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
NAME = "mps"
DEVICE = torch.device(NAME, 0)


class OnDevice(torch.Tensor):
    """A tensor of the pretend device. To torch's C++ it lies on the CPU, so that autograd runs it there."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(
            cls, inside.shape, strides=inside.stride(), storage_offset=inside.storage_offset(), dtype=inside.dtype
        )

    def __init__(self, inside):
        self.inside = inside

    device = property(lambda self: DEVICE)
    is_cpu = property(lambda self: False)
    is_mps = property(lambda self: True)

    def tolist(self):
        return self.inside.tolist()

    def __repr__(self, *, tensor_contents=None):
        return f"OnDevice({self.inside})"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


def _run(function, args, kwargs):
    """Run an operator on what is inside, if the device would."""
    given, mine = _tensors((args, kwargs))
    wanted = kwargs.get("device")
    moves = function in (aten._to_copy.default, aten.copy_.default)
    if mine and not moves and _mixed(function, args, kwargs):
        raise RuntimeError(f"Expected all tensors to be on the same device, {DEVICE} and cpu were given to {function}.")
    if mine and torch.float64 in (kwargs.get("dtype"), *(one.dtype for one in given if one.ndim or moves)):
        raise TypeError(f"Cannot convert a MPS Tensor to float64 dtype, as {function} would.")
    if wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    found = function(*_inside(args), **_inside(kwargs))
    if function is aten.copy_.default:
        return args[0]
    there = bool(mine) if wanted is None else torch.device(wanted).type == NAME
    known = {id(one.inside): one for one in mine}  # operators that work in place give back what they were given
    return tree_map(lambda one: known[id(one)] if id(one) in known else _placed(one), found) if there else found


def _mixed(function, args, kwargs):
    if torch._C._current_graph_task_id() != -1:  # autograd makes zeros to add to where C++ thinks that tensors are
        return False
    given, _ = _tensors((args[0], args[2:], kwargs) if function in INDEXING else (args, kwargs))
    return any(not isinstance(one, OnDevice) and one.ndim for one in given)


def _tensors(tree):
    """All tensors, and those of the device."""
    given = [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]
    return given, [one for one in given if isinstance(one, OnDevice)]


def _inside(tree):
    return tree_map(lambda one: one.inside if isinstance(one, OnDevice) else one, tree)


def _placed(inside):
    if not isinstance(inside, torch.Tensor):
        return inside
    if inside.dtype == torch.float64:
        raise TypeError("The MPS framework doesn't support float64.")
    return OnDevice(inside)


class _Operators(TorchDispatchMode):
    """Tensors that are made on the device, or moved there, become `OnDevice`."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Names(TorchFunctionMode):
    """What torch decides before any operator runs: which device a name means, and whether a tensor is there already."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda one: DEVICE if _is_name(one) else one, (args, kwargs or {}))
        if function is torch.Tensor.cpu:
            return _moved(args[0], torch.device("cpu"), None)
        if function is torch.Tensor.to and isinstance(args[1] if args[1:] else None, torch.Tensor):
            return _moved(args[0], args[1].device, args[1].dtype)
        if function is torch.Tensor.to:
            return _moved(args[0], *torch._C._nn._parse_to(*args[1:], **kwargs)[:2])
        return function(*args, **kwargs)


def _is_name(one):
    return isinstance(one, str | torch.device) and str(one) == NAME


def _moved(tensor, device, dtype):
    here = (device or tensor.device).type == tensor.device.type and dtype in (None, tensor.dtype)
    return tensor if here else aten._to_copy.default(tensor, dtype=dtype, device=device)


@contextlib.contextmanager
def pretend_device():
    """Within it there is a device `mps`, whatever the machine has."""
    lifts, overwrites = torch._C._only_lift_cpu_tensors(), torch.__future__.get_overwrite_module_params_on_conversion()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=) is seen,
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # and parameters of a moved network change type
    try:
        with _Operators(), _Names():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
