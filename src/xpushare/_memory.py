"""`Memory` and the three mallocs: the object face of USM memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from xpushare._errors import ForkError, InvalidArgumentError
from xpushare._native import BufferBase, Span, forks
from xpushare.core import memory as core
from xpushare.core.memory import Implicit, Range

if TYPE_CHECKING:
    from xpushare._array import SharedArray
    from xpushare._device import Context, Device, DeviceLike
    from xpushare.sharing.handle import Handle

__all__ = ["Memory", "malloc_device", "malloc_host", "malloc_shared"]

_new = BufferBase.__new__


@final
class Memory(BufferBase):
    """USM memory: an allocation, a slice of one, or another process's opened here. Made by `malloc_*` and
    `ipc.memory.open`.

    Speaks DLPack, the array interfaces where they apply, and, on host-accessible memory, the buffer protocol (format
    "B", one dimension). `close()` gives up this object's hold; the memory goes when the last buffer, capsule, array,
    slice, export or unfinished queue operation has let go. Using it after `close` raises `InvalidArgumentError`, in a
    forked child `ForkError`.
    """

    __slots__ = ("_implicit", "_pinned", "_range")

    _range: Range | None
    _implicit: Implicit | None
    _pinned: Range | None

    def __new__(cls, *_args: object, **_options: object) -> Self:
        raise TypeError("Memory is made by malloc_device, malloc_host, malloc_shared and ipc.memory.open")

    @classmethod
    def _make(cls, source: Range) -> Memory:
        allocation = source.allocation
        self: Memory = (
            _new(cls, allocation.address + source.offset, source.nbytes, source.read_only)
            if allocation.host_accessible
            else _new(cls)
        )
        self._range = source
        self._implicit = None
        self._pinned = None
        return self

    def _use(self) -> Range:
        found = self._range
        if found is None:
            raise InvalidArgumentError("this Memory is closed")
        if found.allocation._forks != forks():
            raise ForkError(f"this Memory {core.FORK_ADVICE}")
        return found

    @property
    def ptr(self) -> int:
        """Address in this process."""
        return self._use().address

    @property
    def nbytes(self) -> int:
        return self._use().nbytes

    @property
    def device(self) -> Device:
        """Device of the allocation; of an import, the one it was opened on."""
        return self._use().device

    @property
    def context(self) -> Context:
        return self._use().context

    @property
    def is_imported(self) -> bool:
        return self._use().handle is not None

    @property
    def read_only(self) -> bool:
        return self._use().read_only

    @property
    def handle(self) -> Handle:
        """The handle that an import was opened from. `InvalidArgumentError` on an own allocation: `ipc.memory.get`
        makes one.
        """
        found = self._use().handle
        if found is None:
            raise InvalidArgumentError("this Memory is not imported: xs.ipc.memory.get(memory) makes a handle")
        return found

    @property
    def closed(self) -> bool:
        return self._range is None

    def close(self) -> None:
        """Give up this object's hold (see the class). Idempotent; in a forked child it touches nothing."""
        self._range = None
        self._implicit = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def slice(self, offset: int, nbytes: int) -> Memory:
        """The bytes [offset, offset + nbytes) as a Memory of their own that shares the ownership; its handle is that
        range.
        """
        return Memory._make(core.slice_(self._use(), offset, nbytes))

    def as_array(self, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> SharedArray:
        """A C-ordered array of `shape` and `dtype` that begins `offset` bytes in; shares the ownership."""
        from xpushare._array import SharedArray

        return SharedArray._over(self._use(), shape, dtype, offset)

    def _bytes(self) -> SharedArray:
        """All of it, byte by byte."""
        from xpushare._array import SharedArray, as_dtype

        found = self._use()
        return SharedArray._make(found, (found.nbytes,), as_dtype("uint8"), (1,), 0)

    def statistics(self) -> dict[str, Any]:
        """Who shares this memory: kind, sizes, whether it is imported, and the live handles made of its allocation."""
        from xpushare.core.statistics import memory_statistics

        return memory_statistics(self._use())

    def _span(self) -> Span:
        found = self._use()
        if not found.allocation.host_accessible:
            raise BufferError(
                f"memory of {found.device} is not host-accessible: use torch.from_dlpack, cupy.from_dlpack or "
                "jax.dlpack.from_dlpack, "
                "or copy it to malloc_host memory with Queue.copy"
            )
        owner, read_only = found.hold()
        return Span(found.address, found.nbytes, read_only, owner)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        return self._bytes().__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        found = self._use()
        return found.device._dlpack(found.allocation.kind)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_interface__") and name.startswith("__"):
            interface = getattr(self._bytes(), name)
            self._pinned = self._range  # the consumer holds this object, not a buffer: stay open as long as it lives
            return interface
        raise AttributeError(f"'Memory' object has no attribute {name!r}")

    def __repr__(self) -> str:
        if self._range is None:
            return "<Memory closed>"
        found = self._range
        how = "imported " if found.handle is not None else ""
        access = " read-only" if found.read_only else ""
        return f"<Memory {how}{found.nbytes} bytes{access} at {found.address:#x} on {found.device}>"

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._use()
        if found.handle is not None:
            fields = found.handle._fields
            return _reopen, (bytes(found.handle), found.offset - fields.offset, found.nbytes)
        with Implicit.lock:
            if self._implicit is None:
                self._implicit = Implicit(core.get(found, implicit=True))
        return _reopen, (bytes(self._implicit.handle), 0, found.nbytes)

    def __copy__(self) -> NoReturn:
        raise TypeError("a Memory cannot be copied: it is the memory. Use slice(), or Queue.copy into a new allocation")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


def _reopen(handle: bytes, offset: int, nbytes: int) -> Memory:
    opened = core.open_(handle)
    if (offset, nbytes) != (0, opened.nbytes):
        opened = core.slice_(opened, offset, nbytes)
    return Memory._make(opened)


def malloc_device(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """`nbytes` of memory on `device` (default: `default_device()`), which other processes can open once exported.

    Owned by the returned object. Raises `InvalidArgumentError`, `OutOfMemoryError`, `DeviceError`. (urUSMDeviceAlloc;
    memfd_create on `native_cpu`.)
    """
    return Memory._make(core.allocate("device", nbytes, device, context))


def malloc_host(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Host memory that `device` can reach, too. As `malloc_device` otherwise. (urUSMHostAlloc)"""
    return Memory._make(core.allocate("host", nbytes, device, context))


def malloc_shared(nbytes: int, device: DeviceLike | None = None, *, context: Context | None = None) -> Memory:
    """Memory that the driver moves between host and `device`. As `malloc_device` otherwise. (urUSMSharedAlloc)"""
    return Memory._make(core.allocate("shared", nbytes, device, context))
