"""`Memory`, which is USM memory, and `SharedArray`, an array in such memory that other array libraries can use. Both
classes are in one module because each creates objects of the other.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, Self, final

from xpushare import _native, adapters
from xpushare._native import ArrayState, BufferBase, End, Leaves, Span, dlpack_capsule
from xpushare.common import texts
from xpushare.common.elements import (
    as_dtype,
    as_shape,
    c_strides,
    check_dtype,
    dlpack_type,
    dtype_words,
    expect_numpy,
    extent,
    in_elements,
    memoryview_format,
    named_by_typestr,
)
from xpushare.common.errors import InvalidArgumentError, InvalidHandleError
from xpushare.common.numbers import integer
from xpushare.common.texts import readable
from xpushare.core import memory as core
from xpushare.core.declare import closing, made, watchers
from xpushare.core.device import adapter_of, dlpack_of, info_of
from xpushare.core.memory import Range
from xpushare.core.pickles import Implicit, Pickled, anew, forwards
from xpushare.objects.array_handle import ArrayHandle, is_tree
from xpushare.objects.lifecycle import Exportable, Holder, advise, unpickles, use, why_unusable
from xpushare.objects.message import ONE_ARRAY, arrays_of, content_of, give_back, open_message, text_of
from xpushare.sharing import identity
from xpushare.sharing.handle import fields_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from xpushare.adapters.vendor import ArrayInterface
    from xpushare.core.device import Device
    from xpushare.core.ordering import Mark, Order
    from xpushare.core.queue import Work
    from xpushare.sharing.handle import Handle

__all__ = [
    "Marks",
    "Memory",
    "SharedArray",
    "array_of",
    "array_over",
    "bytes_of",
    "covered_by",
    "described",
    "host_array",
    "memory_over",
    "order_before",
    "placed",
    "span_of",
    "unsettled",
    "view_of",
]


_LEFT_OUT: Final[Any] = object()
Marks = dict[tuple[Any, type], Any]  # by device and kind of array: a `Mark`, or None


def same_device(found: tuple[int, int], wanted: tuple[int, int]) -> bool:
    return found == wanted or (adapters.on_host(found[0]) and adapters.on_host(wanted[0]))


def expect_host(found: Range) -> None:
    """Raise BufferError if the host cannot read these bytes."""
    if not found.allocation.host_accessible:
        raise BufferError(
            f"memory of {found.device} is not host-accessible: use torch.from_dlpack, cupy.from_dlpack or "
            "jax.dlpack.from_dlpack, or copy it to malloc_host memory with Queue.copy"
        )


def span_of(found: Range) -> Span:
    """Return a buffer over these bytes, which keeps the memory alive."""
    expect_host(found)
    owner, read_only = found.hold()
    return Span(found.address, found.nbytes, read_only, owner)


@final
class Memory(BufferBase, Exportable[Range]):
    """Memory of a device: an allocation, a slice of one, or memory of another process.

    `malloc_device`, `malloc_host`, `malloc_shared` and `ipc.memory.open` return such an object. It supports DLPack and
    the array interfaces and, if the host can access the memory, the buffer protocol. After `close`, the memory is freed
    once the last view, array, slice, export and unfinished queue operation has released it.

    Examples:
        >>> with xs.malloc_host(64, "native_cpu:0") as memory:
        ...     memory.nbytes, len(memoryview(memory))
        (64, 64)
    """

    __slots__ = ()

    _kind = "memory"
    _copy_advice = "it is the memory. Use slice(), or Queue.copy into a new allocation"

    def __new__(cls, *args: Never, **options: Never) -> Self:  # noqa: ARG004
        raise TypeError("Memory is made by malloc_device, malloc_host, malloc_shared and ipc.memory.open")

    if not TYPE_CHECKING:  # to type checkers there is no index

        def __getitem__(self, _at: object) -> NoReturn:
            raise TypeError("Memory has no index: use memory.slice(offset, nbytes), or memoryview(memory) on the host")

    @property
    def ptr(self) -> int:
        """Address in this process."""
        return use(self).address

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return use(self).nbytes

    @property
    def read_only(self) -> bool:
        """Whether views of the memory are read-only."""
        return use(self).views_read_only

    def close(self) -> None:
        """End this object's use of the memory. Idempotent. Views, arrays and slices stay valid.

        Examples:
            >>> memory = xs.malloc_host(64, "native_cpu:0")
            >>> memory.close()
            >>> memory.closed
            True
        """
        if watchers:
            closing(self)
        self._give_up()

    def slice(self, offset: int, nbytes: int) -> Memory:
        """Return a part of the memory as a `Memory` of its own.

        Args:
            offset: Offset in the memory, in bytes, at which the part begins.
            nbytes: Length of the part in bytes.

        Returns:
            The part, which shares the ownership of the memory. Its handles cover exactly the part.

        Raises:
            InvalidArgumentError: The part does not lie inside the memory, or the memory is closed.

        Examples:
            >>> with xs.malloc_host(64, "native_cpu:0") as memory:
            ...     memory.slice(16, 8).nbytes
            8
        """
        return memory_over(core.slice_(use(self), offset, nbytes))

    def as_array(self, shape: int | tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> SharedArray:
        """Return an array over the memory.

        Args:
            shape: Number of elements per dimension.
            dtype: A NumPy dtype or its name.
            offset: Offset in the memory, in bytes, at which the first element begins.

        Returns:
            A C-ordered array that shares the ownership.

        Raises:
            InvalidArgumentError: The array does not fit into the memory, or the memory is closed.

        Examples:
            >>> with xs.malloc_host(64, "native_cpu:0") as memory:
            ...     memory.as_array((2, 4), "float32").nbytes
            32
        """
        return array_over(use(self), shape, dtype, offset)

    def statistics(self) -> dict[str, Any]:
        """Report sizes and handles of this memory.

        Returns:
            A dict. `kind` is "device", "host" or "shared". `nbytes` is the size of this memory, and `allocation_nbytes`
            the size of the allocation that contains it. `imported` says whether the memory was opened from a handle.
            `kept_nbytes` is the size of all memory that this process caches, including the unused rest of the
            allocation for small arrays. `exports` has the live handles of the allocation, each with
            `generation`, `nbytes`, `read_only` and the number of `importers`.

        Raises:
            InvalidArgumentError: The memory is closed.

        Examples:
            >>> with xs.malloc_host(64, "native_cpu:0") as memory:
            ...     memory.statistics()["nbytes"]
            64
        """
        from xpushare.core.statistics import memory_statistics

        return memory_statistics(use(self))

    def _span(self) -> Span:
        return span_of(use(self))

    def __dlpack__(self, **options: Any) -> Any:
        return bytes_of(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        found = use(self)
        return dlpack_of(found.device, found.allocation.kind)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._given("__array_interface__")

    def _given(self, name: str) -> dict[str, Any]:
        """Return the value of the array interface attribute `name`, for all of the memory as an array of bytes."""
        content = bytes_of(self)
        interface: dict[str, Any] = getattr(content, name)
        self._pinned = content  # the consumer holds this object, not a buffer: stay open as long as it lives
        return interface

    def __repr__(self) -> str:
        found: Range | None = self._held
        why = why_unusable(found)
        if found is None or why:
            return f"<Memory {why}>"
        how = "imported " if found.handle is not None else ""
        access = " read-only" if found.views_read_only else ""
        return f"<Memory {how}{found.nbytes} bytes{access} at {found.address:#x} on {found.device}>"

    def _forwarded(self, found: Range) -> Handle | None:
        return found.handle if found.borrowed else None

    def _reduce(self) -> tuple[Any, ...]:
        found = use(self)
        handle = self._handle_to_pickle(found, core.get)
        return _reopen, (bytes(handle), found.offset - fields_of(handle).offset, found.nbytes)


def memory_over(source: Range) -> Memory:
    """Make the `Memory` object for a range."""
    self = BufferBase.__new__(Memory)
    self._hold(source, source.allocation.forks)
    if watchers:
        made(self)
    return self


def bytes_of(memory: Memory) -> SharedArray:
    """Return all of the memory, as an array of bytes."""
    found = use(memory)
    return array_of(found, (found.nbytes,), as_dtype("uint8"), (1,), 0)


@unpickles(Memory)
def _reopen(handle: bytes, offset: int, nbytes: int) -> Memory:
    opened = core.open_(handle)
    if (offset, nbytes) != (0, opened.nbytes):
        opened = core.slice_(opened, offset, nbytes)
    return memory_over(opened)


@final
class SharedArray(ArrayState, Holder[Range]):
    """An array in memory that processes share.

    `empty`, `zeros`, `array`, `attach`, `Memory.as_array` and `VirtualRange.as_array` make it. Read
    it with `np.asarray(a)` or `memoryview(a)` on the host. On any device, use
    `torch.from_dlpack(a)`, `cupy.from_dlpack(a)` or `jax.dlpack.from_dlpack(a)`. The results share
    the memory and keep it alive, even after `close()`. A `SharedArray` itself has no arithmetic,
    and `==` compares objects, not elements. `np.array_equal(a, b)` compares elements.

    Examples:
        >>> a = xs.zeros((2, 3))
        >>> np.asarray(a)[0, 0] = 5
        >>> np.asarray(a).sum()
        np.float64(5.0)
    """

    __slots__ = ()

    _copy_advice = "it is the memory. numpy.array(a) makes a private copy"

    def __new__(cls, *args: Never, **options: Never) -> Self:  # noqa: ARG004
        raise TypeError("a SharedArray is made by xs.empty, xs.zeros, xs.array and xs.attach")

    def _before_host(self) -> None:
        """Wait for the producer's stream, because the host is about to read the array. Once the content is complete,
        later reads do not wait.
        """
        order = self._order
        if order is not None:
            order.before_host()
            self._order = None

    def _before(self, work: Work) -> None:
        """Make `work`, which reads or writes next, wait on the device for the producer's stream."""
        order = unsettled(self)
        if order is not None:
            order.before(work)

    def _expect_opened(self) -> None:
        """Raise an error if the array came from a pickle that could not be opened. A closed array raises none, since
        its shape and type are still known.
        """
        if self._dtype is None:
            use(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements per dimension."""
        self._expect_opened()
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the elements. If NumPy has none without the package `ml_dtypes` (bfloat16, float8) and that is
        not installed, this raises `InvalidArgumentError`.
        """
        self._expect_opened()
        dtype: np.dtype[Any] = self._dtype
        expect_numpy(dtype)
        return dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """For each dimension, the number of bytes from one element to the next."""
        self._expect_opened()
        return self._strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
        return self.size * int(self._dtype.itemsize)

    @property
    def ptr(self) -> int:
        """Address of the first element."""
        return use(self).address + self._offset

    @property
    def device(self) -> Device:
        """The device that the array was made on, or that it was opened on."""
        return use(self).device

    def statistics(self) -> dict[str, Any]:
        """Report sizes and handles of the memory that the array lies in.

        Returns:
            The dict of `Memory.statistics`.

        Raises:
            InvalidArgumentError: The array is closed.

        Examples:
            >>> with xs.share(a := xs.zeros(3, label="mine")):
            ...     len(a.statistics()["exports"])
            1
        """
        return self.memory.statistics()

    @property
    def memory(self) -> Memory:
        """The memory that the array lies in, as a new object that shares the ownership."""
        return memory_over(use(self))

    @property
    def read_only(self) -> bool:
        """Whether views of the memory are read-only."""
        return use(self).views_read_only

    @property
    def is_imported(self) -> bool:
        """Whether the memory was opened from a handle. False if `attach(own=True)` found memory of this process."""
        return use(self).handle is not None

    @property
    def handle(self) -> ArrayHandle:
        """The handle that `attach` opened for this array, or for the tree that it belongs to.

        An array that `attach` did not make raises `InvalidArgumentError`.
        """
        use(self)
        message: ArrayHandle | None = self._message
        if message is None:
            how = "xs.share makes one" if not self.is_imported else "its memory has: a.memory.handle"
            raise InvalidArgumentError(f"this SharedArray came by no array handle; {how}")
        return message

    def close(self) -> None:
        """End this object's use of the memory. Idempotent. Views, tensors and other arrays over the
        memory stay valid.

        Examples:
            >>> a = xs.zeros(3)
            >>> view = np.asarray(a)
            >>> a.close()
            >>> view.tolist()
            [0.0, 0.0, 0.0]
        """
        if watchers:
            closing(self)
        self._give_up()
        self._order = None

    def _span(self) -> Span:
        found = use(self)
        allocation = found.allocation
        if not allocation.host_accessible:
            expect_host(found)
        if self._order is not None:
            self._before_host()
        shape, dtype = self._shape, self._dtype
        code, itemsize = memoryview_format(dtype), dtype.itemsize
        owner, read_only = allocation.hold(found)
        start, nbytes = allocation.address + found.offset + self._offset, math.prod(shape) * itemsize
        return Span(start, nbytes, read_only, owner, shape, self._strides, code, itemsize)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        expect_numpy(self._dtype)
        array = self._on_host()
        if dtype is not None and numpy.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a view of dtype {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _on_host(self) -> Any:
        """Return the array as a NumPy array, whose dtype may be a stand-in."""
        import numpy

        found = use(self)
        if not found.allocation.host_accessible:
            expect_host(found)
        self._before_host()
        shape, strides, kind = self._shape, self._strides, self._dtype
        low, high = extent(shape, strides, kind.itemsize)
        start = found.address + self._offset
        owner, read_only = found.hold()
        base: Any = Span(start + low, high - low, read_only, owner)
        return numpy.ndarray(shape, kind, base, -low, strides)

    def __dlpack_device__(self) -> tuple[int, int]:
        found = use(self)
        return dlpack_of(found.device, found.allocation.kind)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = _LEFT_OUT,
        copy: bool | None = _LEFT_OUT,
    ) -> Any:
        if max_version == (1, 0) and dl_device is not None and copy not in (None, True) and use(self).read_only:
            _warn_torch()
        if max_version is None or (max_version == (1, 0) and dl_device is not None and copy is not None):
            use(self)
            if min(self._strides, default=0) < 0:
                _refuse_torch(self._shape, self._strides)
        if dl_device is not None and dl_device is not _LEFT_OUT:
            here = self.__dlpack_device__()
            if not same_device(here, tuple(dl_device)):  # type: ignore[arg-type]
                raise BufferError(f"the array is on DLPack device {here}, not on {tuple(dl_device)}")
        copy = None if copy is _LEFT_OUT else copy
        versioned = max_version is not None and max_version[0] >= 1
        return self._copied()._capsule(stream, versioned, copied=True) if copy else self._capsule(stream, versioned)

    def _copied(self) -> SharedArray:
        """Return a copy in new memory. The copying has finished when this returns."""
        from xpushare.core import queue as queues

        source, offset, shape, strides, dtype = described(self)
        if not source.nbytes:
            return self
        place = core.allocate(source.allocation.kind, source.nbytes, source.device, source.context)
        work = queues.create(source.device, source.context)
        self._before(work)
        queues.copy(work, (place, 0, place.nbytes), (source, 0, source.nbytes), None)
        queues.synchronize(work, None)
        return array_of(place, shape, dtype, strides, offset)

    def _capsule(self, stream: Any, versioned: bool, immutable: bool = False, copied: bool = False) -> Any:
        """Return a DLPack capsule. If `immutable` is true, the consumer never writes to arrays, so the capsule does not
        mark a read-only array as read-only. If `copied` is true, the consumer asked for a copy, and this array is that
        copy.
        """
        found = use(self)
        allocation = found.allocation
        here = dlpack_of(found.device, allocation.kind)
        if stream is not None or self._order is not None:
            self._order_dlpack(found, adapters.on_host(here[0]), stream)
        dtype = self._dtype
        kind = dlpack_type(dtype)
        steps = in_elements(self._strides, dtype.itemsize)
        owner, read_only = allocation.hold(found)
        address = allocation.address + found.offset + self._offset
        sealed = read_only and not immutable
        return dlpack_capsule(owner, address, here, kind, self._shape, steps, sealed, versioned, copied)

    def _order_dlpack(self, found: Range, on_host: bool, stream: Any) -> None:
        """Make the consumer's stream wait until the content of the array is complete. `stream` is DLPack's number for
        the stream. None means the default stream or, for memory of the host, no stream.
        """
        device = found.device
        if (
            stream is not None
            and stream != -1
            and on_host
            and adapter_of(device).stream(info_of(device), None, None) is None
        ):
            raise BufferError("memory of the host has no streams: stream must be None")
        order = None if stream == -1 else unsettled(self)
        if order is None:
            return
        if stream is None and on_host:
            self._before_host()
            return
        from xpushare.core.ordering import work_on

        work = work_on(device, stream)
        assert work is not None  # device memory is of a device with streams
        order.before(work)

    def _interface(self, **more: Any) -> dict[str, Any]:
        found = use(self)
        owner, read_only = found.hold()
        self._pinned = owner  # the consumer holds this object, not a buffer: stay open as long as it lives
        return {
            "shape": self._shape,
            "typestr": self._dtype.str,
            "strides": self._strides,
            "data": (found.address + self._offset, read_only),
            "version": 3,
            **more,
        }

    if not TYPE_CHECKING:  # to type checkers there is no arithmetic

        def __len__(self) -> NoReturn:
            _refuse("has no len()")

        def __bool__(self) -> bool:
            return True  # as any object, though it has a __len__

        def __getitem__(self, _at: object) -> NoReturn:
            _refuse("has no elements of its own")

        def __setitem__(self, _at: object, _value: object) -> NoReturn:
            _refuse("has no elements of its own")

        def _arithmetic(self, other: object) -> Any:
            if isinstance(other, int | float | complex | SharedArray):
                _refuse("does not calculate")
            return NotImplemented  # an array of a library does

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _arithmetic
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = _arithmetic
        __lt__ = __le__ = __gt__ = __ge__ = _arithmetic

        def __float__(self) -> NoReturn:
            _refuse("does not calculate")

        __int__ = __neg__ = __abs__ = __float__

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not use(self).allocation.host_accessible:
            raise AttributeError("__array_interface__ is for host-accessible memory")
        dtype = self._dtype
        if not named_by_typestr(dtype):
            raise AttributeError(f"__array_interface__ has no code for {dtype}: use numpy.asarray")
        self._before_host()
        return self._interface()

    def _given(self, name: str) -> dict[str, Any]:
        """Return the value of the array interface attribute `name`. Raises AttributeError if the device's vendor has no
        such interface. If the interface can name a stream, the consumer waits for that stream. Otherwise the host waits
        here until the content is complete.
        """
        found = use(self)
        protocol = _given_interfaces.get((found.device.backend, name))
        if protocol is None:
            raise AttributeError(f"arrays on {found.device} have no {name}")
        stream = None
        if protocol.stream is None:
            self._before_host()
        elif self._order is not None:
            stream = protocol.stream
            self._order_dlpack(found, False, stream)
        if protocol.layout == "numpy":
            return self._interface(stream=stream)
        dtype, strides = self._dtype, self._strides
        if not named_by_typestr(dtype) or any(step % dtype.itemsize for step in strides):
            raise AttributeError(f"{protocol.name} has no way to describe {dtype} with strides {strides}")
        return self._interface(
            strides=in_elements(strides, dtype.itemsize),
            offset=0,
            version=1,
            syclobj=protocol.syclobj(info_of(found.device)),
        )

    def _repr_html_(self) -> str:
        found: Range | None = self._held
        why = why_unusable(found)
        if found is None or why:
            return texts.facts("SharedArray", {"state": why})
        said = {
            "shape": self.shape, "dtype": dtype_words(self._dtype), "size": readable(self.nbytes),
            "device": found.device,
            "imported": "yes" if found.handle is not None else None,
            "read-only": "yes" if found.views_read_only else None,
        }  # fmt: skip
        return texts.facts("SharedArray", said)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return texts.bundle(self, include, exclude)

    def __repr__(self) -> str:
        found: Range | None = self._held
        why = why_unusable(found)
        if found is None or why:
            return f"<SharedArray {why}>"
        how = "imported " if found.handle is not None else ""
        access = " read-only" if found.views_read_only else ""
        return f"<SharedArray {how}{self._shape} {dtype_words(self._dtype)}{access} on {found.device}>"

    def _reduce(self) -> tuple[Any, ...]:
        return _reopen_array, (self._pickled(),)

    def _pickled(self, producer: object = None, marks: Marks | None = None) -> bytes:
        """Return the bytes that a pickle of the array contains: the handle of an import if its exporter is alive,
        otherwise the handle of a new export. Its readers wait for the work queued so far on the current stream of
        `producer`'s library. `marks` has the stream marks made so far for the same message.
        """
        found = use(self)
        imported = found.handle if found.borrowed else None
        if imported is not None and self._exports is None and forwards(imported):
            return self._received(found, imported)
        if found.handle is not None:
            self._before_host()  # only its own process, which may be gone, could wait for its queued work
        covered, first = covered_by(self)
        writer = self if producer is None else producer
        order = _marked(found.device, writer, {} if marks is None else marks)  # asks other libraries: without the lock
        kept: _Pickled | None
        while (kept := self._exports) is None or (handle := kept.memory.sent(found.device)) is None:
            with Pickled.lock:
                if self._exports is not kept:
                    continue  # another thread has exported it
                events: set[Implicit] = set()  # the export holds them: it may outlive this array
                export = partial(core.get, covered.replace(lease=(covered.lease, events)), implicit=True)
                made = Pickled(export()) if imported is None else anew(self, found.device, export)
                if made is None:
                    assert imported is not None
                    return self._received(found, imported)  # it has expired, as its first use will say
                self._exports = _Pickled(made, events)
        if order is not None:
            kept.events.add(order.export)
        return _sealed(handle, covered, self._dtype, self._shape, self._strides, first, order)

    def _received(self, found: Range, handle: Handle) -> bytes:
        """Return the message, as bytes, that passes this array on under `handle`, the handle that it was opened from.
        This is the received message if that was the message of one array, otherwise a new one.
        """
        message: ArrayHandle | None = self._message
        if message is not None and not is_tree(message):
            return bytes(message)
        self._before_host()  # its event is the tree's
        fields = fields_of(handle)
        place = found.replace(offset=fields.offset, nbytes=fields.nbytes)
        first = found.offset + self._offset - fields.offset
        return _sealed(handle, place, self._dtype, self._shape, self._strides, first, None)


_VIEW: Final = "np.asarray(a) is the same memory as a NumPy array, torch.from_dlpack(a) as a tensor"
advise(
    SharedArray,
    **dict.fromkeys((
        "numpy", "copy", "fill", "tolist", "reshape", "item", "sum", "mean", "max", "min", "astype", "T", "buf", "cpu",
        "cuda", "to", "ndarray",
    ), _VIEW),
    unlink="close() gives up this object's hold, and the memory is freed with the last one",
)  # fmt: skip

_PLACED_HERE: Final = _native.KINDS_MOST  # a number that no kind of `Leaves` has


def _sealed(
    handle: Handle, place: Range, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...], first: int,
    order: Mark | None,
) -> bytes:  # fmt: skip
    """Return the message of one array in memory that has been exported as `handle`."""
    leaves = Leaves([None], False)
    leaves.put(0, place, first, shape, strides, dtype, _PLACED_HERE)
    leaves.groups({}, -1 if order is None else 0, False)
    marks = () if order is None else ((order.handle, order.point),)
    made = leaves.seal(identity.sealing(), (handle,), marks, text_of((dtype,), ONE_ARRAY))
    assert made is not None  # one array is never too large
    return bytes(made)


def _marked(device: Device, producer: object, marks: Marks) -> Mark | None:
    """Mark the current position of the stream that the library of `producer` works on, for the arrays of `marks`.
    Return None on devices without streams.
    """
    if not adapter_of(device).has_streams:
        return None
    from xpushare.core.ordering import mark, work_on

    key = device, type(producer)
    if key not in marks:
        work = work_on(device, None, producer)
        marks[key] = None if work is None else mark(work, device)
    found: Mark | None = marks[key]
    return found


def _refuse(what: str) -> NoReturn:
    raise TypeError(
        f"a SharedArray {what}: np.asarray(a) is the same memory as a NumPy array, torch.from_dlpack(a) as a tensor"
    )


_TORCH_WRITES: Final = (
    "torch ignores that this array is read-only: a write into the tensor ends this process (SIGSEGV), on a GPU its "
    "context. Write into tensor.clone(), or share without read_only=True"
)


def _warn_torch() -> None:
    """Warn that `torch.from_dlpack` treats read-only memory as writable. The call is recognised because it asks
    for DLPack version 1.0 and, unlike NumPy, leaves out optional arguments. If torch is loaded, other libraries that
    call in this way cause a needless warning.
    """
    if "torch" in sys.modules:
        import warnings

        warnings.warn(_TORCH_WRITES, stacklevel=4)  # the caller of from_dlpack


def _refuse_torch(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Raise `BufferError` for negative strides, at which `torch.from_dlpack` ends the process. The call is recognised
    as in `_warn_torch`. Older versions of torch ask for no DLPack version at all.
    """
    if "torch" in sys.modules and extent(shape, strides, 1)[0] < 0:
        raise BufferError(
            f"torch takes no negative strides, and this array has strides {strides}: torch.from_numpy(np.asarray(a)"
            ".copy()) makes a tensor of a copy"
        )


def _given(thing: Memory | SharedArray, name: str) -> dict[str, Any]:
    return thing._given(name)  # pyright: ignore[reportPrivateUsage]


_given_interfaces: Final[dict[tuple[str, str], ArrayInterface]] = {}  # by (backend, name)


def _give_interfaces(backend: str) -> None:
    """Add the array interfaces of a vendor whose devices are in use here to `Memory` and `SharedArray`. They are set on
    the classes, since `__getattr__` would slow down every attribute access.
    """
    record = adapters.record(backend)
    for each in () if record is None else record.interfaces:
        if each.given:
            _given_interfaces[backend, each.name] = each
            for kind in Memory, SharedArray:
                if not hasattr(kind, each.name):
                    setattr(kind, each.name, property(partial(_given, name=each.name)))


adapters.on_first_use(_give_interfaces)


class _Pickled:
    """The export that pickling an array made."""

    __slots__ = ("events", "memory")

    def __init__(self, memory: Pickled, events: set[Implicit]) -> None:
        self.memory = memory
        self.events = events


def array_of(
    source: Range,
    shape: tuple[int, ...],
    dtype: Any,
    strides: tuple[int, ...],
    offset: int,
    order: Order | None = None,
) -> SharedArray:
    """Make an array whose first element is `offset` bytes into `source`. Raises `InvalidArgumentError` if the array
    does not lie inside `source`.
    """
    low, high = extent(shape, strides, dtype.itemsize)
    if offset + low < 0 or offset + high > source.nbytes:
        core.piece("the memory", source.nbytes, offset + low, high - low)  # raises the error
    array: SharedArray = _native.array(source, source.allocation.forks, shape, strides, dtype, offset, None, order)
    if watchers:
        made(array)
    return array


def array_over(source: Range, shape: int | tuple[int, ...], dtype: DTypeLike, offset: int = 0) -> SharedArray:
    """Make a C-ordered array that begins at byte `offset` of `source`."""
    found = as_dtype(dtype)
    check_dtype(found)
    lengths = as_shape(shape)
    return array_of(source, lengths, found, c_strides(lengths, found.itemsize), integer("offset", offset))


def view_of(
    array: SharedArray, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...]
) -> SharedArray:
    """Make another array in the same memory. Its first element lies `offset` bytes after the first element of `array`,
    and its readers wait for the same signals.
    """
    check_dtype(dtype)
    return array_of(use(array), as_shape(shape), dtype, strides, array._offset + offset, array._order)


def placed(array: SharedArray) -> tuple[Range, int]:
    """Return the memory that the array lies in, and the offset of its first element."""
    return use(array), array._offset


def described(array: SharedArray) -> tuple[Range, int, tuple[int, ...], tuple[int, ...], Any]:
    """Return the exact bytes that the elements span, the first element's offset in them, the shape, the strides and the
    dtype.
    """
    found = use(array)
    dtype = array._dtype
    shape, strides = array._shape, array._strides
    low, high = extent(shape, strides, dtype.itemsize)
    at = array._offset + low
    if at or high - low != found.nbytes:
        found = found.replace(offset=found.offset + at, nbytes=high - low)
    return found, -low, shape, strides, dtype


def covered_by(array: SharedArray) -> tuple[Range, int]:
    """Return the exact bytes that the elements span, and the first element's offset in them."""
    return described(array)[:2]


def unsettled(array: SharedArray) -> Order | None:
    """Return the signals of events that readers of the array have to wait for, or None once the content is complete."""
    order: Order | None = array._order
    if order is not None and order.settled():
        order = None
        array._order = None
    return order


def capsule_of(array: SharedArray, stream: Any, versioned: bool, immutable: bool = False) -> Any:
    """Make a DLPack capsule. `immutable` means that the consumer never writes to arrays."""
    return array._capsule(stream, versioned, immutable)  # pyright: ignore[reportPrivateUsage]


def host_array(array: SharedArray) -> Any:
    """Return an array in host-accessible memory as a NumPy array, whose dtype may be a stand-in."""
    return array._on_host()  # pyright: ignore[reportPrivateUsage]


def order_before(array: SharedArray, work: Work) -> None:
    """Make later operations of `work` wait until the content of the array is complete."""
    array._before(work)  # pyright: ignore[reportPrivateUsage]


def pickled_by(array: SharedArray, producer: object, marks: Marks | None = None) -> bytes:
    """Return the bytes of a pickle of the array. A process that opens it waits for the work that
    the library of `producer` has queued.
    """
    return array._pickled(producer, marks)  # pyright: ignore[reportPrivateUsage]


@unpickles(SharedArray)
def _reopen_array(raw: bytes) -> SharedArray:
    message = ArrayHandle(raw)
    content = content_of(message)
    if content.tree is not ONE_ARRAY:
        raise InvalidHandleError("this is the handle of a tree, not of a single array")
    opened: list[Range] = []
    array: SharedArray
    with End(give_back, message, opened):
        orders = open_message(message, None, True, None, opened)
        (array,) = arrays_of(message, opened, content, orders)
    return array


_native.register(SharedArray=SharedArray)
