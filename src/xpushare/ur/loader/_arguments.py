"""Converts the arguments of a C call to the arguments of a function of `xpushare.ur`. There is one class for each kind
of argument.

A C call arrives as *words* of 64 bits, in the order of its parameters. A struct that is passed by value takes three
words.
"""

from __future__ import annotations

import ctypes
import functools
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
from xpushare.ur.loader._values import handles_at, read_bytes, reader, written_number

__all__ = ["Argument", "Call", "Post", "Words", "arguments", "given_data"]

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
