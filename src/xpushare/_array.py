"""`SharedArray`: shared memory with a shape and a dtype, readable by every array library."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, final

from xpushare import adapters
from xpushare._errors import ForkError, InvalidArgumentError
from xpushare._native import BufferBase, Span, dlpack_capsule, forks
from xpushare.core.memory import FORK_ADVICE, Range, piece

if TYPE_CHECKING:
    from xpushare._array_handle import ArrayHandle
    from xpushare._device import Device
    from xpushare._memory import Memory
    from xpushare.adapters.vendor import ArrayInterface
    from xpushare.core.ordering import Order
    from xpushare.core.queue import Work

__all__ = ["SharedArray"]

_DLPACK_CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
DLPACK_NAMED: Final = {
    "bfloat16": (4, 16),
    "float8_e3m4": (7, 8),
    "float8_e4m3": (8, 8),
    "float8_e4m3b11fnuz": (9, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}


def as_dtype(dtype: Any) -> Any:
    """The NumPy dtype of that name; bfloat16 and the float8 family by their `ml_dtypes` names."""
    import numpy

    try:
        return numpy.dtype(dtype)
    except TypeError:
        if isinstance(dtype, str):
            try:
                import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
            except ImportError:
                raise InvalidArgumentError(
                    f"dtype {dtype!r} is none of NumPy's (bfloat16 and float8 need ml_dtypes)"
                ) from None
            if hasattr(ml_dtypes, dtype):
                return numpy.dtype(getattr(ml_dtypes, dtype))
        raise InvalidArgumentError(f"{dtype!r} is no dtype") from None


def as_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    try:
        found = (operator.index(shape),) if not isinstance(shape, tuple | list) else tuple(map(operator.index, shape))
    except TypeError:
        raise InvalidArgumentError(f"a shape is an integer or a tuple of integers, not {shape!r}") from None
    if any(length < 0 for length in found):
        raise InvalidArgumentError(f"a shape has no negative length: {found}")
    return found


@functools.lru_cache(1024)
def c_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-ordered array."""
    strides: list[int] = []
    step = itemsize
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


@functools.lru_cache(1024)
def extent(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """First and one-past-last byte that an array touches, relative to its first element."""
    if 0 in shape:
        return 0, 0
    steps = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    return sum(step for step in steps if step < 0), sum(step for step in steps if step > 0) + itemsize


@functools.lru_cache(1024)
def in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides as DLPack counts them; BufferError where it cannot."""
    if any(stride % (itemsize or 1) for stride in strides):
        raise BufferError("DLPack counts strides in elements; these are no multiples of the item size")
    return tuple(stride // (itemsize or 1) for stride in strides)


def same_device(found: tuple[int, int], wanted: tuple[int, int]) -> bool:
    return found == wanted or (adapters.on_host(found[0]) and adapters.on_host(wanted[0]))


@final
class SharedArray(BufferBase):
    """An array in shared memory; made by `Memory.as_array`, `VirtualRange.as_array`, `empty` and `attach`.

    `np.asarray(a)`, `memoryview(a)` on host-accessible memory; `torch.from_dlpack(a)`, `jax.dlpack.from_dlpack(a)`,
    `cupy.from_dlpack(a)` everywhere. Each keeps the memory open also after `close()`.
    """

    __slots__ = ("_dtype", "_handle", "_implicit", "_offset", "_order", "_pinned", "_range", "_shape", "_strides")

    _range: Range | None
    _shape: tuple[int, ...]
    _strides: tuple[int, ...]
    _offset: int
    _dtype: Any
    _pinned: object
    _handle: ArrayHandle | None  # that it was attached by
    _order: Order | None  # what its readers have to wait for
    _implicit: Any  # what pickling has exported

    def __new__(cls, *_args: object, **_options: object) -> Self:
        raise TypeError("a SharedArray is made by Memory.as_array, VirtualRange.as_array, empty and attach")

    @classmethod
    def _make(
        cls, source: Range, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...], offset: int
    ) -> SharedArray:
        """An array whose first element is `offset` bytes into `source`, checked to lie inside it."""
        low, high = extent(shape, strides, dtype.itemsize)
        if offset + low < 0 or offset + high > source.nbytes:
            piece("the memory", source.nbytes, offset + low, high - low)  # says what is wrong
        self: SharedArray = BufferBase.__new__(cls)
        self._range = source
        self._shape = shape
        self._strides = strides
        self._offset = offset
        self._dtype = dtype
        self._pinned = None
        self._handle = None
        self._order = None
        self._implicit = None
        return self

    @classmethod
    def _over(cls, source: Range, shape: int | tuple[int, ...], dtype: Any, offset: int = 0) -> SharedArray:
        found = as_dtype(dtype)
        if found.hasobject:
            raise InvalidArgumentError("arrays of Python objects cannot be shared")
        lengths = as_shape(shape)
        try:
            start = operator.index(offset)
        except TypeError:
            raise InvalidArgumentError(f"offset is an integer, not {type(offset).__name__}") from None
        return cls._make(source, lengths, found, c_strides(lengths, found.itemsize), start)

    def _use(self) -> Range:
        found = self._range
        if found is None:
            raise InvalidArgumentError("this SharedArray is closed")
        if found.allocation._forks != forks():
            raise ForkError(f"this SharedArray {FORK_ADVICE}")
        return found

    def _covered(self) -> tuple[Range, int]:
        """Exactly the bytes that the elements span, and the first element's place in them."""
        found = self._use()
        low, high = extent(self._shape, self._strides, self._dtype.itemsize)
        at = found.offset + self._offset + low
        return Range(found.allocation, at, high - low, *found[3:]), -low

    def _before_host(self) -> None:
        """The host reads next: wait for the producer's stream. A content that is there needs no waiting again."""
        if self._order is not None:
            self._order.before_host()
            self._order = None

    def _unsettled(self) -> Order | None:
        """What readers have to wait for; None once the content is there."""
        order = self._order
        if order is not None and order.settled():
            order = self._order = None
        return order

    def _before(self, work: Work) -> None:
        """`work` reads or writes next: make it wait, on the device, for the producer's stream."""
        order = self._unsettled()
        if order is not None:
            order.before(work)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def dtype(self) -> Any:
        """A NumPy dtype."""
        return self._dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element to the next, per dimension."""
        return self._strides

    @property
    def ndim(self) -> int:
        return len(self._shape)

    @property
    def size(self) -> int:
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements (urUSM allocations may be larger)."""
        return self.size * int(self._dtype.itemsize)

    @property
    def ptr(self) -> int:
        """Address of the first element."""
        return self._use().address + self._offset

    @property
    def device(self) -> Device:
        return self._use().device

    @property
    def memory(self) -> Memory:
        """The memory that the array lies in; a new object that shares the ownership."""
        from xpushare._memory import Memory

        return Memory._make(self._use())

    @property
    def read_only(self) -> bool:
        return self._use().read_only

    @property
    def is_imported(self) -> bool:
        return self._use().handle is not None

    @property
    def closed(self) -> bool:
        return self._range is None

    def close(self) -> None:
        """Give up this object's hold; views, capsules and other arrays over the memory stay good. Idempotent."""
        self._range = None
        self._order = None
        self._implicit = None

    def __enter__(self) -> Self:
        self._use()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _span(self) -> Span:
        found = self._use()
        if not found.allocation.host_accessible:
            raise BufferError(
                f"an array on {found.device} is not host-accessible: use torch.from_dlpack, cupy.from_dlpack or "
                "jax.dlpack.from_dlpack"
            )
        self._before_host()
        code = memoryview_format(self._dtype)
        owner, read_only = found.hold()
        return Span(
            found.address + self._offset,
            self.nbytes,
            read_only,
            owner,
            self._shape,
            self._strides,
            code,
            self._dtype.itemsize,
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        found = self._use()
        if not found.allocation.host_accessible:
            self._span()
        self._before_host()
        low, high = extent(self._shape, self._strides, self._dtype.itemsize)
        start = found.address + self._offset
        owner, read_only = found.hold()
        base: Any = Span(start + low, high - low, read_only, owner)
        array: Any = numpy.ndarray(self._shape, self._dtype, base, -low, self._strides)
        if dtype is not None and numpy.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"a view of dtype {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple[int, int]:
        found = self._use()
        return found.device._dlpack(found.allocation.kind)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        here = self.__dlpack_device__()
        if copy:
            raise BufferError("shared memory is handed over as it is; copy on the consumer's side")
        if dl_device is not None and not same_device(here, tuple(dl_device)):  # type: ignore[arg-type]
            raise BufferError(f"the array is on DLPack device {here}, not on {tuple(dl_device)}")
        return self._capsule(stream, max_version is not None and max_version[0] >= 1)

    def _capsule(self, stream: Any, versioned: bool, immutable: bool = False) -> Any:
        """A DLPack capsule; `immutable`: its consumer writes into no array, so need not be told of a read-only one."""
        found = self._use()
        here = self.__dlpack_device__()
        if stream is not None or self._order is not None:
            self._order_dlpack(found, adapters.on_host(here[0]), stream)
        kind = dlpack_type(self._dtype)
        steps = in_elements(self._strides, self._dtype.itemsize)
        owner, read_only = found.hold()
        address = found.address + self._offset
        return dlpack_capsule(owner, address, here, kind, self._shape, steps, read_only and not immutable, versioned)

    def _order_dlpack(self, found: Range, on_host: bool, stream: Any) -> None:
        """Make the consumer's stream wait: DLPack's number of it, None for the default one (on the host: none)."""
        device = found.device
        if stream is not None and stream != -1 and on_host and device._adapter.stream(device._info, None, None) is None:
            raise BufferError("memory of the host has no streams: stream must be None")
        order = None if stream == -1 else self._unsettled()
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
        found = self._use()
        self._pinned, read_only = (
            found.hold()
        )  # the consumer holds this object, not a buffer: stay open as long as it lives
        return {
            "shape": self._shape,
            "typestr": self._dtype.str,
            "strides": self._strides,
            "data": (found.address + self._offset, read_only),
            "version": 3,
            **more,
        }

    if not TYPE_CHECKING:  # else every name would be an attribute to type checkers

        def __getattr__(self, name: str) -> Any:
            """The array interfaces: NumPy's of host-accessible memory, and those of the device's vendor."""
            if name == "__array_interface__":
                return self._host_interface()
            if name.endswith("_interface__"):
                record = adapters.vendor(self._use().device.backend)
                for protocol in record.interfaces:
                    if protocol.name == name and protocol.given:
                        return self._given(protocol)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _host_interface(self) -> dict[str, Any]:
        if not self._use().allocation.host_accessible:
            raise AttributeError("__array_interface__ is for host-accessible memory")
        if not named_by_typestr(self._dtype):
            raise AttributeError(f"__array_interface__ has no code for {self._dtype}: use numpy.asarray")
        self._before_host()
        return self._interface()

    def _given(self, protocol: ArrayInterface) -> dict[str, Any]:
        """What an array interface says; its consumer waits for the stream that it names, else this does."""
        found = self._use()
        stream = None
        if protocol.stream is None:
            self._before_host()
        elif self._order is not None:
            stream = protocol.stream
            self._order_dlpack(found, False, stream)
        if protocol.layout == "numpy":
            return self._interface(stream=stream)
        itemsize = self._dtype.itemsize
        if not named_by_typestr(self._dtype) or any(step % itemsize for step in self._strides):
            raise AttributeError(f"{protocol.name} cannot tell of {self._dtype} with strides {self._strides}")
        return self._interface(
            strides=in_elements(self._strides, itemsize),
            offset=0,
            version=1,
            syclobj=protocol.syclobj(found.device._info),
        )

    def __repr__(self) -> str:
        if self._range is None:
            return "<SharedArray closed>"
        how = "imported " if self._range.handle is not None else ""
        access = " read-only" if self._range.read_only else ""
        return f"<SharedArray {how}{self._shape} {self._dtype}{access} on {self._range.device}>"

    def __reduce__(self) -> tuple[Any, ...]:
        from xpushare._share import pickled

        return _attach, (pickled(self),)

    def __copy__(self) -> NoReturn:
        raise TypeError("a SharedArray cannot be copied: it is the memory. numpy.array(a) makes a private copy")

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__copy__()


def _attach(handle: bytes) -> SharedArray:
    from xpushare._share import attach

    return attach(handle)


@functools.cache
def named_by_typestr(dtype: Any) -> bool:
    """Whether `dtype.str` says all of the dtype: not of a structure, nor of bfloat16 and its like."""
    import numpy

    try:
        return bool(numpy.dtype(dtype.str) == dtype)
    except TypeError:
        return False


@functools.cache
def memoryview_format(dtype: Any) -> str:
    """PEP 3118's code of a dtype; BufferError where it has none."""
    import numpy

    example: Any = numpy.empty((), dtype)
    try:
        view = memoryview(example)
        if numpy.asarray(view).dtype == dtype:
            return view.format
    except (ValueError, TypeError):  # NumPy has no code for it either
        pass
    raise BufferError(f"the buffer protocol has no code for {dtype}: use numpy.asarray")


@functools.lru_cache(256)
def dlpack_type(dtype: Any) -> tuple[int, int, int]:
    """DLPack's (code, bits, lanes) of a dtype; BufferError where it has none."""
    if not dtype.isnative:
        raise BufferError(f"DLPack has no type for the foreign byte order of {dtype}")
    if dtype.name in DLPACK_NAMED:
        return (*DLPACK_NAMED[dtype.name], 1)
    if dtype.kind not in _DLPACK_CODES:
        raise BufferError(f"DLPack has no type for {dtype}")
    return _DLPACK_CODES[dtype.kind], 8 * dtype.itemsize, 1
