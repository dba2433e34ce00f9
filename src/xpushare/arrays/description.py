"""Descriptions of other libraries' arrays by array interface, DLPack or buffer protocol. This module imports none of
those libraries.
"""

from __future__ import annotations

import bisect
import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from xpushare import adapters
from xpushare._native import LEAST_ADDRESS, DLTensor, Recogniser, view_array
from xpushare._native import readable as is_readable
from xpushare.adapters.base import Adapter, DeviceInfo, Foreign
from xpushare.adapters.vendor import ArrayInterface, Vendor
from xpushare.arrays import meaning
from xpushare.common.aspects import Aspect
from xpushare.common.elements import DLPACK_NAMED, as_dtype, as_shape, c_strides, check_dtype, extent
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare.core.device import Device, known_device
from xpushare.core.memory import Range
from xpushare.core.resources import Allocation
from xpushare.objects.array import SharedArray, covered_by
from xpushare.sharing import node

__all__ = [
    "Described",
    "Located",
    "check_elements",
    "describe",
    "described",
    "described_to_copy",
    "device_of",
    "expect_readable",
    "is_lent",
    "kind_of",
    "kind_of_buffers",
    "locate",
    "range_at",
    "range_of",
    "to_copy",
    "viewable",
    "why_no_array",
]

_DLPACK_KINDS: Final = {0: "i", 1: "u", 2: "f", 5: "c"}
_COMPLEX: Final = 5
_DIFFERS: Final = "requires_grad"
_ADDRESSES: Final = 1 << 64
_STRIDES: Final = 1 << 63
_address: Final = operator.attrgetter("address")
_DLPACK_NAMES: Final = {(6, 8): "bool", **{number: name for name, number in DLPACK_NAMED.items()}}


# Advice for objects that are not arrays, by their library.
_ADVICE: Final = {
    "pandas": ": share its columns (xs.array(df['x'].to_numpy()))",
    "polars": ": share its columns (xs.array(df['x'].to_numpy()))",
    "pyarrow": ": write the table into shared memory with pyarrow.ipc, as examples/arrow_table.py does, and share that",
    "xpushare": ". An Event or a Queue is not an array. Pass an Event made with enable_ipc=True as an argument of a "
    "Process, or publish it by xs.publish(name, event)",
    "builtins": ". `share` takes arrays, and trees of dict, list, tuple, arrays, None, bool, int, float, complex, str, "
    "bytes and NumPy scalars",
}
_LEAVES: Final = (str, int, float, complex, bytes)
_LEAF: Final = (
    ". A single {} is not shared: put it into a tree with an array, as in {{'x': array, 'y': value}}. "
    "xs.array makes a shared copy of numbers"
)


class Located(NamedTuple):
    """The location of an array: the address and size of its memory, whether the memory is read-only, and the backend of
    its device.
    """

    address: int  # of its lowest byte
    nbytes: int
    read_only: bool
    backend: str | None  # backend of the device memory, if the protocol reports one


class Described(NamedTuple):
    """A description of an array, made from the data of its array protocol."""

    address: int  # of its first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    itemsize: int
    kind: Any  # the element type in the protocol's words; `dtype_of` makes a NumPy dtype of it
    read_only: bool
    backend: str | None  # as in `Located`
    ordinal: int | None  # of the device, with a backend; None: the array has to be asked, see `device_of`
    stream: Any  # the stream that produces the content, if the protocol reports one
    # The object from which the description was made. It may own the memory: a NumPy scalar exports a copy.
    keep: object

    def located(self) -> Located:
        low, high = extent(self.shape, self.strides, self.itemsize)
        return Located(self.address + low, high - low, self.read_only, self.backend)

    @property
    def dtype(self) -> Any:
        return dtype_of(self.kind)


def dtype_of(kind: Any) -> Any:
    """Convert a protocol's element type to a NumPy dtype. `kind` is anything that `numpy.dtype` accepts, or DLPack's
    tuple (code, bits, lanes).
    """
    import numpy

    return _dtype_of_dlpack(*kind) if isinstance(kind, tuple) else numpy.dtype(kind)


@functools.lru_cache(64)
def _dtype_of_dlpack(code: int, bits: int, lanes: int) -> Any:
    if (code, bits) == (_COMPLEX, 32):
        raise InvalidArgumentError(
            "complex32 has no dtype in NumPy: share its parts as float16, by torch.view_as_real(x), and make it again "
            "by torch.view_as_complex"
        )
    name = _DLPACK_NAMES.get((code, bits))
    if lanes == 1 and name is not None:
        return as_dtype(name)
    if lanes == 1 and code in _DLPACK_KINDS and bits % 8 == 0:
        return as_dtype(f"{_DLPACK_KINDS[code]}{bits // 8}")
    raise InvalidArgumentError(f"NumPy has no dtype for DLPack's type (code {code}, {bits} bits, {lanes} lanes)")


def to_copy(array: Any) -> Any:
    """Return the array of which a copy has the same values: the data of a tensor that requires a gradient, and the
    values of a view that is computed when it is read. Any other array is returned unchanged.
    """
    try:
        if getattr(array, _DIFFERS, False) is True and meaning.is_plain(type(array)):
            array = array.detach()
        return meaning.resolved(array)
    except Exception as error:  # code of the array's library
        raise _unusable(array, error) from error


def _asked(array: Any, name: str) -> Any:
    """Return an attribute of another library's array, or None if the array has no such attribute. Raises
    `InvalidArgumentError` if the attribute cannot be read.
    """
    try:
        return getattr(array, name, None)
    except XpuShareError:  # of an array of ours
        raise
    except Exception as error:
        raise _unusable(array, error) from error


def check_elements(array: Any, dtype: Any) -> None:
    """Raise `InvalidArgumentError` if elements of this dtype cannot be shared, by the name of what they are."""
    if dtype.kind == "O" and hasattr(array, "ravel"):
        raise InvalidArgumentError(meaning.objects_named(array))
    check_dtype(dtype)


def _unusable(array: Any, why: object) -> InvalidArgumentError:
    named = meaning.unsuited(array)
    return InvalidArgumentError(named or f"{type(array).__name__} does not hand out its memory: {why}")


def describe(array: Any, ordered: bool = False) -> Described:
    """Describe an array by a vendor's array interface, DLPack or the buffer protocol. With `ordered`, a DLPack array on
    a device is asked to make its content ready on the device's default stream. Otherwise no stream is involved.

    Raises `InvalidArgumentError` if the object supports none of these protocols. Raises `FeatureNotSupportedError` if
    no adapter supports the array's device, or this process has not loaded the device's driver.
    """
    found = described(array, ordered)
    if found is None:
        raise InvalidArgumentError(
            f"{type(array).__name__} is not an array whose memory can be found{why_no_array(array)}"
        )
    return found


def why_no_array(x: Any) -> str:
    """Return what to do with an object that is no array, as the end of a message. Return an empty string if nothing is
    known about it.
    """
    kind = type(x)
    why = meaning.unsuited(x)
    if why is not None:
        return f": {why}"
    if issubclass(kind, Enum):
        return ". It is an enumeration: share its value, x.value"
    for base in _LEAVES:
        if kind is base:
            return _LEAF.format(kind.__name__)
        if issubclass(kind, base):
            return f". It is a subclass of {base.__name__}, which is not rebuilt: share {base.__name__}(x)"
    if hasattr(kind, "state_dict"):
        return ". Share the module's parameters: xs.share(module.state_dict())"
    if issubclass(kind, Mapping):
        return ". It is a mapping, and trees hold dicts: share dict(x)"
    if is_dataclass(kind):
        return ". It is a dataclass, and trees hold dicts: share vars(x)"
    return _ADVICE.get(kind.__module__.partition(".")[0], "")


def described(array: Any, ordered: bool = False) -> Described | None:
    """Describe an array as `describe` does, but return None for an object that supports none of the protocols."""
    try:
        found = _viewed(array)
        if found is None:
            why = meaning.refusal(array)
            if why is not None:
                raise InvalidArgumentError(why)
            found = _described(meaning.data_of(array), ordered)
        if found is not None and not _is_possible(found):
            why = meaning.refusal(array) or f"it says {_words_for(found)}, which no process has"
            raise _unusable(array, why)
    except (XpuShareError, MemoryError):
        raise
    except Exception as error:  # code of the array's library
        raise _unusable(array, error) from error
    return found


def described_to_copy(array: Any) -> tuple[Any, Described | None]:
    """Return the array that has the values in memory (see `meaning.resolved`), and its description as of `described`.
    The content is made ready on its device's default stream.
    """
    try:
        found = _viewed(array)
        if found is not None and _is_possible(found):
            return array, found
        array = meaning.resolved(array)
    except (XpuShareError, MemoryError):
        raise
    except Exception as error:
        raise _unusable(array, error) from error
    return array, described(array, True)


def _is_possible(found: Described) -> bool:
    """Return whether a process can have memory where the array says that its elements are."""
    span = _span_of(found.shape, found.strides, found.itemsize)
    return span is not None and (
        span[0] == span[1] or LEAST_ADDRESS <= found.address + span[0] <= _ADDRESSES - (span[1] - span[0])
    )


@functools.lru_cache(1024)
def _span_of(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int] | None:
    """Return the bytes that the elements span, relative to the first one, or None if no array has this shape and these
    strides.
    """
    if min(shape, default=0) < 0 or max(map(abs, strides), default=0) >= _STRIDES:
        return None
    return extent(as_shape(shape), strides, itemsize)


def _words_for(found: Described) -> str:
    where = found.located()
    layout = f"in the shape {found.shape} with the strides {found.strides}"
    return f"{where.nbytes} bytes at address {where.address:#x}, {layout}"


def expect_readable(array: Any, found: Described, low: int, high: int) -> None:
    """Raise `InvalidArgumentError` unless this process can read the host memory in which the array says that its
    elements are. The elements span the bytes from `low` to `high`, relative to the first one. Call this before the
    memory is read, since a wrong address would end the process.
    """
    if low < high and not is_readable(found.address + low, high - low):
        raise _unusable(array, f"it says {_words_for(found)}, and this process has no memory there")


def _described(array: Any, ordered: bool) -> Described | None:
    """Describe an array by an array interface, DLPack's Python protocol, or the buffer protocol."""
    found = _interfaced(array)
    if found is not None:
        return found
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, ordered)
    try:
        view = memoryview(array)
    except TypeError:
        return None
    import numpy

    buffer = numpy.asarray(view)
    return Described(
        buffer.ctypes.data, buffer.shape, buffer.strides, buffer.itemsize, buffer.dtype, view.readonly, None, 0, None,
        buffer,
    )  # fmt: skip


def _interfaced(array: Any) -> Described | None:
    """Describe an array by a vendor's array interface, such as `__cuda_array_interface__`. Return None if the array has
    no such interface.
    """
    try:
        return _by_interfaces(array)
    except XpuShareError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise _unusable(array, f"its array interface makes no sense ({error!r})") from error


def _by_interfaces(array: Any) -> Described | None:
    unused: list[str] = []  # several vendors may read one interface; the array belongs to one that is in use
    for own in True, False:
        for record, protocol, interface in _standing(array, _claims(array, own)):
            try:
                found = _from_interface(array, interface, record, protocol)
            except FeatureNotSupportedError as error:
                unused.append(str(error))
                continue
            if found is not None:
                return found
    if unused:
        raise FeatureNotSupportedError("; or ".join(unused))
    return None


class _Claim(NamedTuple):
    """An array's interface data, and a vendor that may own the array because it reads this interface."""

    record: Vendor
    protocol: ArrayInterface
    interface: dict[str, Any]


def _claims(array: Any, own: bool) -> list[_Claim]:
    found: list[_Claim] = []
    asked: dict[str, Any] = {}  # several vendors read one interface, which its library computes
    for record, protocol in adapters.interfaces(own):
        if protocol.name not in asked:
            asked[protocol.name] = _asked(array, protocol.name)
        interface = asked[protocol.name]
        if not isinstance(interface, dict) or not isinstance(interface.get("data"), tuple):
            continue
        if protocol.mine is None or protocol.mine(interface):
            found.append(_Claim(record, protocol, interface))
    return found


def _standing(array: Any, claims: list[_Claim]) -> list[_Claim]:
    """Return the claims that may be right. If several vendors with loaded drivers can read the interface, return only
    the claim of the vendor whose driver recognises the memory. In that case, raises `FeatureNotSupportedError` if no
    driver or several drivers recognise it.
    """
    rivals = [each for each in claims if each.record.backend != adapters.HOST and each.record.in_use()]
    if len(rivals) < 2:
        return claims
    if isinstance(array, SharedArray):
        return [each for each in rivals if each.record.backend == array.device.backend]
    if 0 in rivals[0].interface.get("shape", ()):  # an array without bytes, whose place no driver knows
        return claims
    knowing = [each for each in rivals if adapters.adapter(each.record.backend).knows(each.interface["data"][0] or 0)]
    if len(knowing) == 1:
        return knowing
    raise _nobodys(f"this {type(array).__name__}", [each.record.backend for each in knowing or rivals], bool(knowing))


def _nobodys(what: str, backends: list[str], known: bool) -> FeatureNotSupportedError:
    """Return the error for memory whose owner is unclear, because several drivers recognise the memory or none does."""
    return FeatureNotSupportedError(
        f"the memory of {what} may be of {' or of '.join(backends)}, and {'each' if known else 'none'} of their "
        "drivers in this process knows it, so that nobody can say whose it is: share a copy on the host"
    )


def _viewed(array: Any) -> Described | None:
    """Describe an array of NumPy, or of a library with DLPack's C exchange API, which is faster than the other
    protocols. Return None if the array has to be described by another protocol.
    """
    own: Any = type(array)
    view = view_array(array) if meaning.is_plain(own) else None
    if view is None:
        return None
    address, shape, strides, itemsize, dtype, read_only, element = view
    kind: Any = dtype
    backend, ordinal = None, None
    if element is not None:
        on, ordinal, *number = element
        record = viewable(own, on)
        if record is None or (dtype is not None and meaning.is_sub_byte(dtype)):
            return None
        kind, backend = tuple(number), _backend(array, record)
    found: Described = tuple.__new__(  # faster than the named tuple's own `__new__`
        Described, (address, shape, strides, itemsize, kind, read_only, backend, ordinal, None, None)
    )
    return found


def kind_of_buffers(array: Any) -> tuple[Any, Device] | None:
    """Return the dtype and the device of NumPy's arrays, or of memoryviews, that are of one kind with this one. Return
    None if they have to be described one by one.
    """
    import numpy

    dtype = array.dtype if isinstance(array, numpy.ndarray) else numpy.asarray(array).dtype
    try:
        check_elements(array, dtype)
    except InvalidArgumentError:  # raised again by who describes it
        return None
    return dtype, Device(f"{adapters.HOST}:0")


@functools.lru_cache(256)
def kind_of(own: type, on: int, ordinal: int, code: int, bits: int, lanes: int) -> tuple[Any, Device] | None:
    """Return the dtype and the device of all arrays of type `own` that have this DLPack device (`on`, `ordinal`) and
    this DLPack element type. Return None if such arrays have to be described one by one, for example because each has
    its own stream.
    """
    record = viewable(own, on)
    if record is None or any(hasattr(own, name) for name in record.stream_methods):
        return None
    backend = _backend(own, record)
    device = Device(f"{adapters.HOST}:0" if backend is None else f"{backend}:{ordinal}")
    return _dtype_of_dlpack(code, bits, lanes), device


@functools.lru_cache(64)
def viewable(own: type, on: int) -> Vendor | None:
    """Return the vendor of the DLPack device type `on` if DLPack's C exchange API can describe arrays of type `own`
    there. Return None for device arrays whose type has none of the vendor's array interfaces. They are described by
    `__dlpack__` instead.
    """
    record = adapters.dlpack_owner(on)[0]
    if record.backend != adapters.HOST and not any(hasattr(own, each.name) for each in record.interfaces):
        return None
    return record


def _backend(array: Any, record: Vendor) -> str | None:
    """Return the backend of an array of this vendor, or None for the host. Raises `FeatureNotSupportedError` if this
    process has not loaded the vendor's driver.
    """
    if record.backend == adapters.HOST:
        return None
    if not record.in_use():
        hint = f" ({record.install})" if record.install else ""
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} says that it is on a device of {record.backend}, whose driver this process "
            f"has not loaded{hint}"
        )
    return record.backend


def _from_interface(
    array: Any, interface: dict[str, Any], record: Vendor, protocol: ArrayInterface
) -> Described | None:
    import numpy

    if interface.get("mask") is not None:
        raise InvalidArgumentError(
            f"{type(array).__name__} has a mask, which cannot be shared with it: share both arrays"
        )
    typestr: str = interface["typestr"]
    kind: Any = getattr(array, "dtype", None)
    if isinstance(kind, numpy.dtype):
        # It describes everything, even if the protocol has no code (bfloat16) or only part of one (padding).
        itemsize: int = kind.itemsize
    elif typestr[1] == "V" and hasattr(array, "__dlpack__"):
        return None
    else:
        description = interface.get("descr")
        kind = numpy.dtype(typestr)
        itemsize = kind.itemsize
        if typestr[1] == "V" and description is not None and description != [("", typestr)]:
            kind = numpy.dtype(list(description))
            if kind.itemsize != itemsize:
                raise ValueError(f"its typestr says {itemsize} bytes, its descr {kind.itemsize}")
    shape = as_shape(tuple(interface["shape"]))
    strides = interface.get("strides")
    address, read_only = interface["data"]
    address = operator.index(address or 0)
    stream = interface.get("stream")
    if protocol.layout == "sycl_usm":  # these strides count elements
        strides = None if strides is None else [step * itemsize for step in strides]
        address += interface.get("offset", 0) * itemsize
        if type(array).__module__.startswith("dpctl.memory"):  # its flag says that it is writable
            read_only = not read_only
        on = interface.get("syclobj")
        stream = None if record.stream_of(on) is None else on
    strides = c_strides(shape, itemsize) if strides is None else tuple(map(operator.index, strides))
    if len(strides) != len(shape):
        raise ValueError(f"it has {len(shape)} lengths and {len(strides)} strides")
    backend = _backend(array, record)
    return Described(address, shape, strides, itemsize, kind, bool(read_only), backend, None, stream, interface)


def _from_dlpack(array: Any, ordered: bool) -> Described:
    options: dict[str, Any] = {}
    try:
        on, ordinal = map(int, array.__dlpack_device__())
        default = adapters.dlpack_owner(on)[1].stream
        if default is not None:
            # -1 asks for nothing; JAX takes it for a stream, and asks for nothing by None.
            nothing = None if type(array).__module__.partition(".")[0] in ("jax", "jaxlib") else -1
            options["stream"] = default if ordered else nothing
        try:
            capsule = array.__dlpack__(max_version=(1, 1), **options)
        except TypeError:  # a producer older than DLPack 1.0
            capsule = array.__dlpack__(**options)
        tensor = DLTensor(capsule)
    except XpuShareError:
        raise
    except Exception as error:  # BufferError says why (it needs gradients, say); others raise others
        raise _unusable(array, error) from error
    record = adapters.dlpack_owner(tensor.device[0])[0]  # the capsule decides
    itemsize = (tensor.dtype[1] * tensor.dtype[2] + 7) // 8
    steps = c_strides(tensor.shape, 1) if tensor.strides is None else tensor.strides
    return Described(
        tensor.address,
        tensor.shape,
        tuple(step * itemsize for step in steps),
        itemsize,
        tensor.dtype,
        tensor.read_only,
        _backend(array, record),
        ordinal,
        None,
        tensor,
    )


def device_of(array: Any, found: Described) -> Device:
    """Return the device that an array lies on, which is the host if the array's protocol has no devices. Raises
    `FeatureNotSupportedError` if the driver does not recognise the memory, since using it could break the device's
    context.
    """
    if found.backend is None:
        return Device(f"{adapters.HOST}:0")
    here, where = node.current(), found.located()
    ours = here.allocations.find(where.address) is not None or here.peers.maps(where.address)
    if where.nbytes and not ours:
        _check_known(array, where)
    ordinal = found.ordinal
    if ordinal is None:
        ordinal = array.__dlpack_device__()[1] if hasattr(array, "__dlpack_device__") else 0
    return Device(f"{found.backend}:{ordinal}")


def _check_known(array: Any, where: Located) -> None:
    """Raise `FeatureNotSupportedError` if the vendor's driver can recognise other libraries' memory, but does not
    recognise the memory of this array.
    """
    adapter = adapters.adapter(where.backend or adapters.HOST)
    finds = any(adapter.support(each, Aspect.foreign_memory).state == "yes" for each in adapter.devices())
    if finds and not adapter.knows(where.address):
        raise FeatureNotSupportedError(
            f"this {type(array).__name__} says that it is on a device of {where.backend}, whose driver in this process "
            f"does not know memory at {where.address:#x}"
        )


def locate(array: Any) -> Located:
    """Return the address and extent of an array."""
    return describe(array).located()


def range_of(array: Any) -> Range:
    """Return the part of an allocation that an array covers. If `array` is an address (an int), return the part from
    the address to the end of the allocation.

    Raises `FeatureNotSupportedError` with the reason if the memory cannot be exported.
    """
    if isinstance(array, SharedArray):
        return covered_by(array)[0]
    if isinstance(array, int) and not isinstance(array, bool):
        if not LEAST_ADDRESS <= array < _ADDRESSES:
            raise InvalidArgumentError(f"{array:#x} is not an address")
        return range_at(Located(array, 0, False, None), None)
    where = locate(array)
    if not where.nbytes:
        raise InvalidArgumentError("an array of no bytes has no memory to export")
    return range_at(where, array)


def allocation_at(
    address: int, nbytes: int, device: Device, info: DeviceInfo | None, finder: Recogniser | None, known: bool = True,
    ahead: int = 0,
) -> Allocation:  # fmt: skip
    """Return the allocation that contains `nbytes` bytes of another library at `address` on `device`. This is faster
    than `range_at`, since `finder` recognises most allocations in one native call.

    `info` describes the device to `finder`. `known` is false if the caller has already searched the finder's cache.
    `ahead` is as for `range_at`.
    """
    if finder is not None and info is not None:
        here = node.here[0]
        if here.allocations.find(address) is None and here.peers.mapping_at(address) is None:
            table = here.table_if_any
            own = None if table is None else table.native
            found: Allocation | None = finder.find(device, info, address, nbytes, known, here.foreign.add, own)
            if found is not None:
                return found
    backend = None if device.backend == adapters.HOST else device.backend
    return range_at(Located(address, nbytes, False, backend), None, ahead=ahead).allocation


def is_lent(address: int) -> bool:
    """Return whether an array at this address has its memory only until this process drops the array. An export would
    not prevent that the memory is used again, so it is not shared in place.
    """
    here = node.current()
    places = here.allocations.find(address), here.peers.mapping_at(address)
    return any(found is not None and found.lent for found in places)


def range_at(where: Located, array: Any, known: Sequence[Allocation] = (), ahead: int = 0) -> Range:
    """Return the part of an allocation that `where` describes. The allocation was made by this process, imported, or
    made by another library.

    `array` keeps the allocation alive, or is None if no object does. If `where.nbytes` is 0, the part ends where the
    allocation ends. Addresses in `known` allocations are found without asking drivers. If other arrays follow in
    adjacent allocations, `ahead` is the number of bytes from `where` to the end of the last array, so that one driver
    call can cover all of them.
    """
    here = node.current()
    if is_lent(where.address):
        raise FeatureNotSupportedError(
            "this array is part of a batch in a slot, which is used again once this process has dropped the batch: "
            "copy it, with xs.array(x) or xs.share(x, copy=True)"
        )
    allocation: Any = here.allocations.find(where.address)
    if allocation is not None:
        return _within(allocation, where.address - allocation.address, where, None)
    imported = here.peers.mapping_at(where.address)
    if imported is not None:
        return _borrowed(imported, where, array)
    at = bisect.bisect_right(known, where.address, key=_address) - 1
    if at >= 0 and where.backend in (None, known[at].device.backend):
        offset = where.address - known[at].address
        if offset + where.nbytes <= known[at].nbytes and offset < known[at].nbytes:
            return _within(known[at], offset, where, array)
    what = f"address {where.address:#x}"
    if array is not None:
        what = f"this {type(array).__module__.partition('.')[0]}.{type(array).__name__}"
    answers: list[tuple[Adapter, Foreign | FeatureNotSupportedError]] = []
    for adapter in adapters.loaded() if where.backend is None else [adapters.adapter(where.backend)]:
        answer: Foreign | FeatureNotSupportedError | None
        try:
            answer = _foreign(adapter, where, ahead)
        except FeatureNotSupportedError as error:  # the driver knows it, and cannot share it
            answer = error
        if answer is not None:
            answers.append((adapter, answer))
    if len(answers) > 1:
        raise _nobodys(what, [adapter.backend for adapter, _ in answers], True)
    for adapter, answer in answers:
        if isinstance(answer, FeatureNotSupportedError):
            try:
                raise answer
            finally:
                del answer, answers  # its traceback refers to this frame, and would keep the array alive
        key = (adapter.backend, answer.identity)
        allocation = here.foreign.get(key)
        if allocation is None:
            device = known_device(adapter, answer.device)
            made = Allocation(device, answer.memory, answer.kind, foreign=True, source=answer.keep, name=key)
            allocation = here.foreign.add(key, made)
        return _within(allocation, answer.offset, where, array)
    if where.backend is not None:
        _check_known(array, where)
    raise FeatureNotSupportedError(
        f"the memory of {what} is private to its library and this process: make the array with xs.empty, or copy it "
        "into shared memory, with xs.array(x) or xs.share(x, copy=True)"
    )


def _foreign(adapter: Adapter, where: Located, ahead: int) -> Foreign | None:
    if ahead > where.nbytes:
        try:
            return adapter.foreign(where.address, ahead)
        except FeatureNotSupportedError:  # the reason may be the bytes ahead
            pass
    return adapter.foreign(where.address, where.nbytes or None)


def _borrowed(imported: Allocation, where: Located, keep: Any) -> Range:
    """Return the part of imported memory that `where` describes. If this process cannot export the memory itself, the
    part has the handle by which the memory was opened.
    """
    found = _within(imported, where.address - imported.address, where, keep)
    if imported.owned:
        return found
    handle = imported.handle_covering(found.offset, found.nbytes)
    if handle is None:
        raise InvalidArgumentError("no handle by which this process opened this memory covers all of the array")
    return found.replace(handle=handle)


def _within(allocation: Allocation, offset: int, where: Located, keep: Any) -> Range:
    nbytes = where.nbytes or allocation.nbytes - offset
    if offset + nbytes > allocation.nbytes:
        raise InvalidArgumentError(
            f"{nbytes} bytes at {where.address:#x} reach beyond their allocation of {allocation.nbytes} bytes"
        )
    device = allocation.device
    return Range(allocation, offset, nbytes, device, device.context, where.read_only, None, keep)
