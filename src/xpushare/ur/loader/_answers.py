"""Returns the results of the functions of `xpushare.ur` to C. There is one class for each kind of result."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final, Protocol

from xpushare.common.result import Result
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._spec import Function
from xpushare.ur.loader._arguments import Call, Words, given_data, packer, write, writer
from xpushare.ur.loader._boxes import library, reachable
from xpushare.ur.loader._tables import KIND_NUMBERS, kept_queries

__all__ = ["After", "Answer", "after", "answer"]

_SUCCESS: Final = int(Result.SUCCESS)
_NULL: Final = int(Result.ERROR_INVALID_NULL_POINTER)
_INVALID_VALUE: Final = int(Result.ERROR_INVALID_VALUE)
_TOO_SMALL: Final = int(Result.ERROR_INVALID_SIZE)
# Commands may use all of it, from its allocation to its end.
_MEMORY: Final = frozenset({"USM memory", "opened memory", "registered host memory"})
_TEXTS: Final = 4096


class Answer(Protocol):
    """Returns the outputs of a function to C, by writing them to the addresses that the C program passed."""

    def refusal(self, words: Words, /) -> int:
        """Check, before the call, that the program passed addresses for all mandatory outputs. Return 0, or the result
        code of the error.
        """
        ...

    def hand_out(self, words: Words, value: Any, /) -> int:
        """Write the function's return value `value` to the outputs. Return the result code of the call."""
        ...


class _Nothing:
    def __init__(self, call: Call, outputs: list[str]) -> None:
        assert not outputs, f"{call.function.name} answers nothing, but C has {outputs}"

    def refusal(self, _words: Words) -> int:
        return _SUCCESS

    def hand_out(self, _words: Words, _value: Any) -> int:
        return _SUCCESS


class _Query:
    """The value of a property and its size in bytes, as outputs."""

    def __init__(self, call: Call, outputs: list[str]) -> None:
        *size, value, written = (call.at[name] for name in outputs)
        self.size = size[0] if size else None  # a query whose value is one number has none
        self.value = value
        self.written = written
        self.asked = call.at["propName"]
        info = INFOS[call.function.returns.removeprefix("info:")]
        numbers = info.enumeration.__members__
        self.packers = {int(numbers[name]): packer(kind, call.boxes) for name, kind in info.kinds.items()}
        self.kept = kept_queries(call.function)
        self.checked = "pPropValue" not in call.function.unchecked
        self.kind = KIND_NUMBERS.get(call.function.args[0].base_kind.removeprefix("handle:"), 0)

    def refusal(self, words: Words) -> int:
        value = words[self.value]
        if not self.checked:
            return _INVALID_VALUE if value and self.size is not None and not words[self.size] else _SUCCESS
        if value or (words[self.written] and not (self.size is not None and words[self.size])):
            return _SUCCESS
        return _NULL

    def hand_out(self, words: Words, value: Any) -> int:
        asked = words[self.asked]
        packed = self.packers[asked](value)
        if asked in self.kept:
            library.xpushare_ur_remember(words[0], self.kind, asked, packed, len(packed))
        to, written = words[self.value], words[self.written]
        if to:
            if self.size is not None and words[self.size] < len(packed):
                return _TOO_SMALL
            write(to, packed)
        if written:
            ctypes.c_uint64.from_address(written).value = len(packed)
        return _SUCCESS


class _List:
    """A list of values as output. C receives the values that fit in its array, and the total number of values."""

    def __init__(self, call: Call, outputs: list[str]) -> None:
        self.room, self.array, self.count = (call.at[name] for name in outputs)
        self.pack = packer(call.function.returns, call.boxes)
        self.counted = bool(call.function.makes)

    def refusal(self, words: Words) -> int:
        return _NULL if words[self.room] and not words[self.array] else _SUCCESS

    def hand_out(self, words: Words, value: Any) -> int:
        room, array, count = words[self.room], words[self.array], words[self.count]
        given = value[:room] if array else []
        if self.counted:
            for each in value[len(given) :]:
                each.release()
        if array and not room:
            return _TOO_SMALL
        if array:
            write(array, self.pack(given))
        if count:
            ctypes.c_uint32.from_address(count).value = len(value)
        return _SUCCESS


class _HandleData:
    """IPC handle data as output. C receives the address and the size of the data. If both outputs are optional, the
    program may pass NULL for one of them. If it passes NULL for the address, the handle data is released immediately.
    """

    def __init__(self, call: Call, outputs: list[str]) -> None:
        self.address, self.size = self.outputs = [call.at[name] for name in outputs]
        self.optional = all(each.optional for each in call.parameters if each.name in outputs)
        [self.ends] = [each for each in FUNCTIONS.values() if each.ends == call.function.makes]
        self.context = call.at.get("hContext", 0)  # an event has its handle here, and its data are always returned
        self.boxes = call.boxes

    def refusal(self, words: Words) -> int:
        given = [bool(words[at]) for at in self.outputs]
        return _SUCCESS if (any if self.optional else all)(given) else _NULL

    def hand_out(self, words: Words, value: Any) -> int:
        if words[self.address]:
            kept = ctypes.create_string_buffer(value, len(value))
            address = ctypes.addressof(kept)
            given_data[address] = kept
            ctypes.c_uint64.from_address(words[self.address]).value = address
        else:
            self.ends.body(self.boxes.get(words[self.context]), value)
        if words[self.size]:
            ctypes.c_uint64.from_address(words[self.size]).value = len(value)
        return _SUCCESS


class _Output:
    """One output, which is written to an address that the program passed. If the program passed NULL instead, a
    reference-counted output is released.
    """

    def __init__(self, call: Call, name: str, kind: str) -> None:
        self.at = call.at[name]
        self.optional = next(each.optional for each in call.parameters if each.name == name)
        self.write = _text_writer if kind == "string" else writer(kind, call.boxes)
        made = call.function.made
        self.counted = kind.removeprefix("handle:") in made
        self.memory = kind == "pointer" and not _MEMORY.isdisjoint(made)

    def hand_out(self, words: Words, value: Any) -> None:
        address = words[self.at]
        if address:
            self.write(address, value)
        elif self.counted:
            value.release()
        if self.memory:
            reachable(value)


class _Outputs:
    """Several outputs. Each is written to its own address, as `_Output` does."""

    def __init__(self, call: Call, outputs: list[str]) -> None:
        kinds = call.function.returns.split("+")
        self.outputs = [_Output(call, name, kind) for name, kind in zip(outputs, kinds, strict=True)]
        self.mandatory = [each.at for each in self.outputs if not each.optional]

    def refusal(self, words: Words) -> int:
        for at in self.mandatory:
            if not words[at]:
                return _NULL
        return _SUCCESS

    def hand_out(self, words: Words, value: Any) -> int:
        for output, each in zip(self.outputs, value, strict=True):
            output.hand_out(words, each)
        return _SUCCESS


class _One(_Outputs):
    def hand_out(self, words: Words, value: Any) -> int:
        self.outputs[0].hand_out(words, value)
        return _SUCCESS


@functools.lru_cache(_TEXTS)
def _text(text: str) -> Any:
    """Return a C string that contains `text`. The string stays in memory until `_TEXTS` other strings have been
    returned.
    """
    return ctypes.create_string_buffer(text.encode())


def _text_writer(address: int, text: str) -> None:
    """Convert `text` to a C string, and write the string's address to `address`."""
    ctypes.c_uint64.from_address(address).value = ctypes.addressof(_text(text))


def answer(call: Call, outputs: list[str]) -> Answer:
    """Return the object that passes a function's results to C. `outputs` are the names of the C parameters that are
    only outputs.
    """
    kinds = call.function.returns
    if kinds.startswith("info:"):
        return _Query(call, outputs)
    if kinds.endswith("[]"):
        return _List(call, outputs)
    if kinds in ("None", "bytes"):
        return (_Nothing if kinds == "None" else _HandleData)(call, outputs)
    return (_Outputs if "+" in kinds else _One)(call, outputs)


# --- the effects of a call ------------------------------------------------------------------------

After = Callable[[Words, list[Any]], object]
"""A function that runs after a successful call. It takes the call's words and arguments."""


def _arguments_of(function: Function, *kinds: str) -> list[int]:
    """Return the indices of the function's arguments that are of one of these kinds."""
    return [i for i, arg in enumerate(function.args) if arg.kind.startswith(kinds)]


def _each(numbers: list[int], do: Callable[[Any], object]) -> After:
    def after(_words: Words, values: list[Any]) -> None:
        for i in numbers:
            do(values[i])

    return after


def _dropper(call: Call) -> After:
    """Return a function to run after a call that may have released the last reference of an object. It removes the C
    handles of such objects, and the handle data that the call released.
    """
    handles = _arguments_of(call.function, "handle:")
    data = [call.at[call.function.args[i].name] for i in _arguments_of(call.function, "bytes")]

    def after(words: Words, values: list[Any]) -> None:
        call.boxes.drop(*[values[i] for i in handles])
        for at in data:
            given_data.pop(words[at], None)

    return after


def after(call: Call) -> list[After]:
    """Return the functions to run after each successful call of a C function."""
    function = call.function
    pointers = _arguments_of(function, "pointer")
    found: list[After] = []
    if function.returns == "None" and function.makes in _MEMORY:
        found.append(_each(pointers, reachable))
    if _arguments_of(function, "callback:event"):  # the function has taken a reference
        found.append(_each(_arguments_of(function, "handle:event"), call.boxes.tell))
    if function.ends in _MEMORY:
        found.append(_each(pointers, library.xpushare_ur_no_range))
    if function.ends:
        found.append(_dropper(call))
    return found
