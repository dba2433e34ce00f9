"""Arrays and streams of another library, such as torch. Tests export such arrays, and wrap such streams with
`Queue.from_native`.

An adapter can provide the arrays and streams of a library for its device. To do so, its class has a method `samples()`
that returns a `Samples`. Otherwise torch is used, if torch accepts memory of the device by DLPack.
"""

from __future__ import annotations

from typing import Any, Protocol

import pytest

import xpushare as xs
from xpushare import adapters

__all__ = ["Samples", "samples"]


class Samples(Protocol):
    """The functions of another library that the suite needs. The argument `device` is a selector such as "vendor:0"."""

    def array(self, device: str, content: bytes) -> Any:
        """Make an array on the device that holds these bytes."""
        ...

    def content(self, array: Any) -> bytes:
        """Return the array's bytes, read with the library that made the array."""
        ...

    def forget(self, array: Any) -> None:
        """Make the library drop its own references to the array, so that only the array's users keep it alive."""
        ...

    def stream(self, device: str) -> Any:
        """Make a stream on the device, for `Queue.from_native`. The caller must keep the stream alive."""
        ...


class _Torch:
    """Samples from torch. To learn torch's name for the device, `_place` makes a tensor over memory of the device and
    reads the tensor's attribute `device`.
    """

    def _place(self, device: str) -> tuple[Any, Any]:
        torch: Any = pytest.importorskip("torch", reason="no other library with memory on this device is installed")
        with xs.malloc_device(64, device) as memory:
            return torch, torch.from_dlpack(memory).device

    def array(self, device: str, content: bytes) -> Any:
        torch, place = self._place(device)
        tensor = torch.tensor(list(content), dtype=torch.uint8, device=place)
        tensor.cpu()  # waits until the device has the content
        return tensor

    def content(self, array: Any) -> bytes:
        return bytes(array.cpu().numpy())

    def forget(self, array: Any) -> None:
        del array

    def stream(self, device: str) -> Any:
        torch, place = self._place(device)
        return torch.get_device_module(place).Stream(place)


def samples(device: str) -> Samples:
    """Return functions that make arrays and streams of a library that works on this device."""
    adapter: Any = adapters.adapter(xs.Device(device).backend)
    own = getattr(adapter, "samples", None)
    found: Samples = _Torch() if own is None else own()
    return found
