"""An allocator of another library that maps segments side by side, as torch's with expandable segments does."""

from __future__ import annotations

import ctypes
from typing import Any

from scripted_driver import MIB2, Range, ScriptedDriver

from exchange import Tensor, capsule
from xpushare.adapters.cuda._adapter import Cuda

__all__ = ["SEGMENT", "Flat", "Library", "tensors"]

SEGMENT = 10 * MIB2  # as torch maps them


class Flat:
    """A tensor of `nbytes` at `address`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes
        self.dims = (ctypes.c_int64 * 1)(nbytes)

    def fill(self, tensor: Tensor) -> None:
        tensor.data, tensor.byte_offset, tensor.on, tensor.ordinal = self.address, 0, 2, 0
        tensor.ndim, tensor.shape = 1, ctypes.addressof(self.dims)
        tensor.code, tensor.bits, tensor.lanes = 1, 8, 1

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3, "stream": 1}


class Library:
    """An allocator that maps segments side by side, and hands out what lies there."""

    type: type[Flat]  # each test's own: what is known of one lasts as long as the process

    def __init__(self, cuda: Cuda, sizes: list[int]) -> None:
        self.driver: ScriptedDriver = cuda._driver.api
        gpu = cuda.devices()[0]
        total = sum(sizes) + 2 * MIB2
        addresses: Any = cuda.reserve(gpu, total, 0)
        self.kept: list[Any] = [addresses]
        self.start = at = -(-addresses.address // MIB2) * MIB2  # as a driver's reservations begin
        for nbytes in sizes:
            pages: Any = cuda.physical(gpu, nbytes, True)
            addresses.map(at - addresses.address, pages, 0, nbytes, "rw")
            self.driver.foreign.append(Range(at, nbytes, 0, (self.start, total), allowed=1, buffer=at))
            self.kept.append(pages)
            at += nbytes
        self.at = self.start

    def tensor(self, nbytes: int, at: int | None = None) -> Flat:
        """The next tensor, which begins at a multiple of 512, or the one so far from the start."""
        if at is not None:
            return self.type(self.start + at, nbytes)
        made = self.type(self.at, nbytes)
        self.at += -(-nbytes // 512) * 512
        return made


def tensors() -> type[Flat]:
    """A new class of tensors: what is known of one lasts as long as the process."""
    return type("Tensor", (Flat,), {"__dlpack_c_exchange_api__": capsule(Flat.fill, lambda _on, _id: 0)})
