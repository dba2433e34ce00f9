"""Reads and writes C values in memory, and converts them to and from Python."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any, Final

from xpushare.common.result import Result
from xpushare.ur import _structs
from xpushare.ur._error import URError
from xpushare.ur.loader._boxes import Boxes

__all__ = ["Packer", "handles_at", "packer", "read_bytes", "reader", "write", "writer", "written_number"]

Packer = Callable[[Any], bytes]
_FORMATS: Final = {"uint32": "I", "int32": "i", "uint64": "Q", "size": "Q", "pointer": "Q", "bool": "?", "handle": "Q"}
_WORD: Final = struct.Struct("Q")


# An object at an address costs a sixth of `memmove` and `string_at`.


@functools.lru_cache(256)
def _block(nbytes: int) -> Any:
    """Return the ctypes type of an array of `nbytes` bytes."""
    return ctypes.c_char * nbytes


@functools.lru_cache(256)
def _row(count: int) -> Any:
    """Return the ctypes type of an array of `count` 64-bit words."""
    return ctypes.c_uint64 * count


def write(address: int, data: bytes) -> None:
    _block(len(data)).from_address(address).raw = data


def read_bytes(address: int, nbytes: int) -> bytes:
    data: bytes = _block(nbytes).from_address(address).raw
    return data


def written_number(address: int) -> int:
    """Return the 64-bit word at an address."""
    number: int = ctypes.c_uint64.from_address(address).value
    return number


def handles_at(boxes: Boxes, address: int, count: int) -> tuple[Any, ...]:
    """Return the objects for an array of `count` handles at an address."""
    return tuple([boxes.get(each) for each in _row(count).from_address(address)])


def _format(kind: str) -> str:
    """Return the format character of the `struct` module for a value of the kind `kind`. Enumerations and flags have 32
    bits.
    """
    return _FORMATS.get(kind.partition(":")[0].removesuffix("?"), "I")


def _layout(name: str) -> tuple[str, int]:
    """Return the formats of a C struct's fields for the `struct` module, and the offset of the first field."""
    fields = "".join(_format(kind) for kind in _structs.FIELD_KINDS[name].values())
    return fields, 16 if name in _structs.STRUCTURE_TYPES else 0


# --- chains of structs (`pNext`) ------------------------------------------------------------------

_LINK: Final = struct.Struct("I4xQ")


def _flags_after(address: int) -> int:
    """Return the first field of a chained struct, a number of 32 bits."""
    return ctypes.c_uint32.from_address(address + _LINK.size).value


def _hint(_address: int) -> bool:
    """Accept a struct that only limits or advises."""
    return True


def _sync_mode(address: int) -> bool:
    """`ur_exp_event_sync_mode_desc_t`: low power is what every wait for an event has here, since its thread sleeps."""
    return not _flags_after(address) & ~1


def _queue_index(address: int) -> bool:
    """`ur_queue_index_properties_t`: the driver chooses the engine, so only the first is there to choose."""
    return not _flags_after(address)


def _native_kind(address: int) -> bool:
    """`ur_queue_native_desc_t`: of Level Zero's kinds of queues, only immediate command lists."""
    data = written_number(address + _LINK.size)
    return not data or ctypes.c_int32.from_address(data).value == 1


_CHAINS: Final[dict[str, dict[int, Callable[[int], bool]]]] = {
    "BufferProperties": {4: _hint, 5: _hint},
    "ExpEventDesc": {0x8001: _sync_mode},
    "QueueNativeProperties": {25: _native_kind},
    "QueueProperties": {15: _queue_index},
    "USMDesc": {8: _hint, 9: _hint, 35: _hint, 36: _hint},
    "USMPoolDesc": {11: _hint},
}
"""For each struct that Unified Runtime lets a program extend: the types (`stype`) of the structs that may be chained to
it, and what tells whether the struct at an address can be honoured.
"""


def _expect_honoured(name: str, address: int) -> None:
    """Raise `ERROR_UNSUPPORTED_FEATURE` if a struct is chained to the one at an address that cannot be honoured."""
    known = _CHAINS[name]
    _, address = _LINK.unpack(read_bytes(address, _LINK.size))
    while address:
        kind, after = _LINK.unpack(read_bytes(address, _LINK.size))
        if kind not in known or not known[kind](address):
            raise URError(
                f"a struct of the type {kind:#x} is chained to {name}, or a value in it, that is not supported",
                result=Result.ERROR_UNSUPPORTED_FEATURE,
            )
        address = after


def reader(name: str, boxes: Boxes) -> Callable[[int], Any]:
    """Return a function that takes the address of a C struct and returns the dataclass with the name `name`."""
    chained = name in _CHAINS
    fields, begin = _layout(name)
    pad = struct.Struct(f"{begin}x{fields}")
    made = getattr(_structs, name)
    handles = [kind.startswith("handle:") for kind in _structs.FIELD_KINDS[name].values()]

    def read(address: int) -> Any:
        if not address:
            return None
        if chained:
            _expect_honoured(name, address)
        values = pad.unpack(read_bytes(address, pad.size))
        return made(*(boxes.get(each) if is_handle else each for each, is_handle in zip(values, handles, strict=True)))

    return read


def _struct_packer(name: str, boxes: Boxes) -> Packer:
    fields, begin = _layout(name)
    whole = struct.Struct(f"{f'I4xQ{fields}' if begin else fields}0Q")
    head = (_structs.STRUCTURE_TYPES[name], 0) if begin else ()
    handles = [kind.startswith("handle:") for kind in _structs.FIELD_KINDS[name].values()]

    def pack(value: Any) -> bytes:
        each = zip(vars(value).values(), handles, strict=True)
        return whole.pack(*head, *(boxes.put(field) if is_handle else int(field) for field, is_handle in each))

    return pack


def _text(value: Any) -> bytes:
    return str(value).encode() + b"\0"


def packer(kind: str, boxes: Boxes) -> Packer:
    """Return a function that converts a value of the kind `kind` to the bytes of the C value. A string becomes its
    encoded characters and a null byte.
    """
    family, _, name = kind.partition(":")
    if kind.endswith("]"):
        one = packer(kind[: kind.index("[")], boxes)
        return lambda values: b"".join(map(one, values))
    if family == "handle":
        return lambda value: _WORD.pack(boxes.put(value))
    if family == "struct":
        return _struct_packer(name, boxes)
    if family in ("string", "bytes"):
        return _text if family == "string" else bytes
    code = struct.Struct(_format(kind))
    if code.format == "I":
        return lambda value: code.pack(int(value) & 0xFFFFFFFF)
    return code.pack


_NUMBERS: Final[dict[str, Any]] = {
    "I": ctypes.c_uint32,
    "i": ctypes.c_int32,
    "Q": ctypes.c_uint64,
    "?": ctypes.c_bool,
}


def writer(kind: str, boxes: Boxes) -> Callable[[int, Any], None]:
    """Return a function that writes a value of the kind `kind` to an address."""
    family = kind.partition(":")[0]
    assert family not in ("string", "bytes", "struct"), f"{kind} has no size of its own"
    number = _NUMBERS[_format(kind)]

    def write_handle(address: int, value: Any) -> None:
        ctypes.c_uint64.from_address(address).value = boxes.put(value)

    def write_number(address: int, value: Any) -> None:
        number.from_address(address).value = value

    return write_handle if family == "handle" else write_number
