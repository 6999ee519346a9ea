"""A device that this machine does not have: tensors that say they are on it, hold values, and refuse to mix.

Every operation runs on the CPU tensor inside, so that results are real numbers. What a real device refuses is refused:
operands on two devices (a CPU tensor without axes is allowed, and CPU indices), a CPU kernel, and float64 where the
device has none.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

# torch knows these names, and starts no such device when a tensor is made on one. The first has float64, as GPUs do
# but those of Apple, whose name the second has.
WIDE, NARROW = torch.device("xla:0"), torch.device("mps:0")
WHOLE = {device.type: device for device in (WIDE, NARROW)}  # "mps" means the first of them
_CROSSING = ("aten._to_copy", "aten.copy_", "aten.index.Tensor", "aten.index_put", "aten._index_put")
_WITHOUT_SCALARS = ("aten.cat", "aten.stack")


class Pretended(Tensor):
    """A tensor that says it is on a device that is not there; its values are in `inner`, on the CPU.

    To torch's own C++ it is on the meta device, for which nothing has to be started, as torch's own fake tensors are.
    """

    inner: Tensor
    pretended: torch.device

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> "Pretended":
        if device.type == NARROW.type and inner.dtype == torch.float64:
            raise TypeError(f"{device} has no float64")
        made: Pretended = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device="meta", requires_grad=False,
        )  # fmt: skip
        made.inner, made.pretended = inner, device
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that is not there."""
        return self.pretended

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.inner!r})"

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_indices(index), value)

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        """On the same device, as a real tensor's method does."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=self.device)

    def tolist(self) -> Any:
        """As a real device's tensor does, and torch's own method refuses for subclasses."""
        return self.inner.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _indices(index: Any) -> Any:
    """Lists as CPU tensors: torch's C++ would put them on the meta device, and lose what they hold."""
    if isinstance(index, tuple):
        return tuple(_indices(part) for part in index)
    return torch.tensor(index) if isinstance(index, list) else index


class Event:
    """A moment in the work of a device; what is pretended is done as soon as it is asked for."""

    def __init__(self, device: Any = None, **options: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing is waiting."""

    def query(self) -> bool:
        """Always done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class Pretence(TorchDispatchMode):
    """While it is on, tensors can be made on a device that is not there; counts what ran on it."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.pretended = device
        self.operations = 0

    def __enter__(self) -> "Pretence":
        # torch.tensor(…, device=…) then comes by here too, as under torch's own fake tensors.
        self._lifting = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        self._event = torch.Event
        torch.Event = Event  # type: ignore[misc, assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.Event = self._event  # type: ignore[misc]
        torch._C._set_only_lift_cpu_tensors(self._lifting)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if Pretended not in types and kwargs.get("device") is None:
            return func(*args, **kwargs)  # most operations under it are the CPU's, and there are very many of them
        self.operations += Pretended in types
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
            kwargs["device"] = self.pretended  # asked for by torch's own C++, of which see `Pretended`
        return _run(func, args, kwargs)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = str(func)
    operands = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    pretended = [x for x in operands if isinstance(x, Pretended)]
    if pretended:
        _check(name, operands, pretended[0].device)
    device = kwargs.get("device")
    if device is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif name.startswith("aten.copy_"):
        device = args[0].device
    elif pretended:
        device = pretended[0].device
    inner_args, inner_kwargs = tree_map_only(Pretended, lambda x: x.inner, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if device is None or torch.device(device).type not in WHOLE:
        return result
    given = {id(x.inner): x for x in pretended}  # an operation in place gives back what it was given
    return tree_map_only(
        Tensor, lambda x: given[id(x)] if id(x) in given else Pretended(x, WHOLE[torch.device(device).type]), result
    )


def _check(name: str, operands: list[Tensor], device: torch.device) -> None:
    if "_for_cpu" in name or "mkldnn" in name:
        raise AssertionError(f"{name} is a kernel of the CPU")
    if name.startswith(_CROSSING):
        return
    axes = -1 if name.startswith(_WITHOUT_SCALARS) else 0
    strangers = [tuple(x.shape) for x in operands if x.device != device and x.ndim > axes]
    if strangers:
        raise RuntimeError(f"{name}: expected all tensors to be on {device}, found some elsewhere, shaped {strangers}")


def moved(module: nn.Module, device: torch.device) -> nn.Module:
    """The module with every parameter and buffer on the device; tied ones stay tied."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                new = nn.Parameter(Pretended(value.detach(), device), requires_grad=False)
                part._parameters[name] = made.setdefault(id(value), new)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = Pretended(buffer, device)
    return module
