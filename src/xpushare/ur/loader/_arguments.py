"""Converts the arguments of a C call to the arguments of a function of `xpushare.ur`. There is one class for each kind
of argument. Reads and writes C values in memory, and converts them to and from Python.

A C call arrives as *words* of 64 bits, in the order of its parameters. A struct that is passed by value takes three
words.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from xpushare.common.result import Result
from xpushare.ur import _structs
from xpushare.ur._callbacks import call_soon
from xpushare.ur._error import URError
from xpushare.ur._objects import Event
from xpushare.ur._spec import Arg, Function
from xpushare.ur.loader._boxes import Boxes
from xpushare.ur.loader._tables import Parameter, parameters, words_of

__all__ = [
    "Argument",
    "Call",
    "Packer",
    "Post",
    "Words",
    "arguments",
    "given_data",
    "handles_at",
    "packer",
    "read_bytes",
    "reader",
    "write",
    "writer",
    "written_number",
]

# --- C values in memory -----------------------------------------------------------------------------------------------

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


# --- arguments --------------------------------------------------------------------------------------------------------

Words = tuple[int, ...]
Post = Callable[[int, int, int, int, bytes | None], object]
"""A function of the library. It makes the library's own thread call a C function of the program."""

_HANDLE_NBYTES: Final = 256
_MOST: Final = 1 << 20  # how many bytes of a pattern or of data are read
_WORD_NBYTES: Final = 8

given_data: Final[dict[int, Any]] = {}
"""The IPC handle data that the program has received and not released, by address."""


class Call(NamedTuple):
    """A C function and the data that is needed to answer calls of it."""

    function: Function
    parameters: tuple[Parameter, ...]
    at: dict[str, int]
    """For each parameter, by name, the index of its word, or of the first of its words."""
    boxes: Boxes
    post: Post

    @classmethod
    def of(cls, function: Function, boxes: Boxes, post: Post) -> Call:
        return cls(function, parameters(function.name), words_of(function.name), boxes, post)


class Argument(Protocol):
    """Converts one or more words of a C call to one argument in Python."""

    uses: tuple[str, ...]
    """The names of the C parameters from which the argument is made."""

    def read(self, words: Words, /) -> Any: ...


class _Word:
    """An argument that is passed on as one unchanged word."""

    def __init__(self, call: Call, name: str) -> None:
        self.uses: tuple[str, ...] = (name,)
        self.at = call.at[name]
        self.boxes = call.boxes

    def read(self, words: Words) -> Any:
        return words[self.at]


class _Truth(_Word):
    def read(self, words: Words) -> bool:
        return words[self.at] != 0


class _UserData(_Word):
    def read(self, words: Words) -> int | None:
        return words[self.at] or None


class _Handle(_Word):
    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        self.get = call.boxes.get

    def read(self, words: Words) -> Any:
        return self.get(words[self.at])


class _InOut(_Word):
    """A handle that is both an input and an output. If the word at the address is no handle of this library, the
    program has not initialised it, and the input is None.
    """

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        self.uses = ()  # it is an output all the same

    def read(self, words: Words) -> Any:
        address = words[self.at]
        handle = written_number(address) if address else 0
        return self.boxes.get(handle) if handle and self.boxes.known(handle) else None


class _Handles(_Word):
    """An array of handles, which must not be NULL. The preceding C parameter is the number of handles."""

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        count = _before(call, name)
        assert count not in {arg.name for arg in call.function.args}, f"{call.function.name}: {count} is not a count"
        self.uses = (count, name)

    def read(self, words: Words) -> tuple[Any, ...] | None:
        address = words[self.at]
        return handles_at(self.boxes, address, words[self.at - 1]) if address else None


class _OptionalHandles(_Handles):
    """An array of handles that may be NULL if its count is 0, such as a wait list. If only one of the address and the
    count is 0, the argument becomes a tuple with a null element, which the checks then reject.
    """

    def read(self, words: Words) -> tuple[Any, ...]:
        count, address = words[self.at - 1], words[self.at]
        if not count and not address:
            return ()
        return handles_at(self.boxes, address, count) if count and address else (None,)


class _Struct(_Word):
    def __init__(self, call: Call, name: str, struct: str) -> None:
        super().__init__(call, name)
        self.reader = reader(struct, call.boxes)

    def read(self, words: Words) -> Any:
        return self.reader(words[self.at])


class _Three(_Word):
    """A struct of three words that is passed by value."""

    def __init__(self, call: Call, name: str, struct: str) -> None:
        super().__init__(call, name)
        self.made = getattr(_structs, struct)

    def read(self, words: Words) -> Any:
        return self.made(*words[self.at : self.at + 3])


class _Pattern(_Word):
    """The bytes of a fill pattern. If the pattern is longer than the memory to fill, its bytes are not read, since the
    checks will reject it because of its length.
    """

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        self.uses = ("patternSize", name)
        self.count = call.at["patternSize"]
        self.filled = [call.at[each] for each in (("size",) if "size" in call.at else ("width", "height"))]

    def read(self, words: Words) -> bytes | None:
        address, nbytes, most = words[self.at], words[self.count], _MOST
        if not address:
            return None
        size = 1
        for at in self.filled:
            size *= words[at]
        most = min(size, most)
        return read_bytes(address, nbytes) if nbytes <= most else bytes(most + 1)


class _Text(_Word):
    """A C string."""

    def read(self, words: Words) -> str | None:
        address = words[self.at]
        return ctypes.string_at(address).decode(errors="replace") if address else None


class _WithSize(_Word):
    """The base class of arguments that C passes as an address and a size, in two successive words."""

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        self.uses = (name, _after(call, name))


class _Number(_WithSize):
    """A number of the type `size_t` that C passes by its address."""

    def read(self, words: Words) -> int:
        address, nbytes = words[self.at], words[self.at + 1]
        if not address:
            raise URError("it is null", result=Result.ERROR_INVALID_NULL_POINTER)
        if nbytes != _WORD_NBYTES:
            raise URError(f"it has {nbytes} bytes", result=Result.ERROR_INVALID_SIZE)
        return written_number(address)


class _Data(_WithSize):
    """IPC handle data that C passes with its size. If the size is wrong, the bytes are not read."""

    def read(self, words: Words) -> bytes | None:
        address, nbytes = words[self.at], words[self.at + 1]
        if not address:
            return None
        return read_bytes(address, nbytes) if nbytes == _HANDLE_NBYTES else bytes(min(nbytes, _MOST))


class _GivenData(_Word):
    """IPC handle data that C passes without its size. It must be at an address that this library returned earlier."""

    def read(self, words: Words) -> bytes | None:
        address = words[self.at]
        if not address:
            return None
        kept = given_data.get(address)
        return b"" if kept is None else bytes(kept.raw)


# --- callbacks ------------------------------------------------------------------------------------


class _Callback(_Word):
    """A pointer to a C function. A thread of the library calls the function without holding the GIL."""

    def __init__(self, call: Call, name: str) -> None:
        super().__init__(call, name)
        self.post = call.post

    def read(self, words: Words) -> Callable[..., object] | None:
        function = words[self.at]
        return self.callable(function) if function else None

    def callable(self, function: int) -> Callable[..., object]:
        raise NotImplementedError


class _EventCallback(_Callback):
    def callable(self, function: int) -> Callable[..., object]:
        def call(event: Event, status: int, data: int | None) -> None:
            handle = self.boxes.lend(event)
            if self.post(function, handle, int(status), data or 0, None):
                self.boxes.take_back(handle)  # there is no memory, or no thread
            call_soon(
                functools.partial(self.boxes.tell, event)
            )  # then the reference of `urEventSetCallback` is released

        return call


class _LoggerCallback(_Callback):
    def callable(self, function: int) -> Callable[..., object]:
        return lambda level, text, data: self.post(function, 0, int(level), data or 0, text.encode())


_HOST_TASK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _HostTask(_Callback):
    """A pointer to a C function that a thread of a queue calls. The queue continues when the function has returned."""

    def callable(self, function: int) -> Callable[..., object]:
        return _HOST_TASK(function)


_CALLBACKS: Final[dict[str, type[_Callback]]] = {
    "event": _EventCallback,
    "logger": _LoggerCallback,
    "host_task": _HostTask,
}

# --- the class of each argument --------------------------------------------------------------------


def _names(call: Call) -> list[str]:
    return [parameter.name for parameter in call.parameters]


def _before(call: Call, name: str) -> str:
    names = _names(call)
    return names[names.index(name) - 1]


def _after(call: Call, name: str) -> str:
    names = [*_names(call), ""]
    return names[names.index(name) + 1]


_SIMPLE: Final[dict[str, type[_Word]]] = {
    "bool": _Truth,
    "data": _UserData,
    "pattern": _Pattern,
    "string": _Text,
}
_STRUCTS: Final[dict[str, type[_Struct] | type[_Three]]] = {"struct": _Struct, "value": _Three}


def _by_address(call: Call, arg: Arg) -> type[_Word]:
    """Choose the class for an argument by its C parameters, if its kind alone does not determine how C passes it."""
    family = arg.base_kind.partition(":")[0]
    points = next(each.passed == "ptr" for each in call.parameters if each.name == arg.name)
    after = _after(call, arg.name)
    if family == "handle":
        return _InOut if points else _Handle
    if family == "sequence":
        return _OptionalHandles if arg.optional else _Handles
    if family == "size" and points:
        return _Number
    if family == "bytes":
        has_size = after.lower().endswith("size") and after not in {each.name for each in call.function.args}
        return _Data if has_size else _GivenData
    return _Word


def _argument(call: Call, arg: Arg) -> Argument:
    family, _, kind = arg.base_kind.partition(":")
    if family in _STRUCTS:
        return _STRUCTS[family](call, arg.name, kind)
    if family == "callback":
        return _CALLBACKS[kind](call, arg.name)
    return _SIMPLE.get(family, _by_address(call, arg))(call, arg.name)


def arguments(call: Call) -> list[Argument]:
    """Return the converters for the arguments of the function, in order."""
    args: Iterable[Arg] = call.function.args
    unknown = {arg.name for arg in args} - call.at.keys()
    assert not unknown, f"{call.function.name} has no {unknown} in C"
    return [_argument(call, arg) for arg in args]
