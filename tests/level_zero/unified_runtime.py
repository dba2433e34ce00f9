"""Unified Runtime itself, called as `xpushare.ur` is: the same names, arguments and answers.

How a function is called in Python is taken from the declarations of `xpushare.ur`, how it is called in C from the header
that Unified Runtime's packages bring.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

from level_zero_driver import ROOT

from xpushare.ur import Result, URError
from xpushare.ur._spec import FUNCTIONS, INFOS, Function
from xpushare.ur._structs import STRUCTURE_TYPES

__all__ = ["LIBRARY", "UnifiedRuntime"]

HEADER = ROOT / "oneapi" / "include" / "unified-runtime" / "ur_api.h"
LIBRARY = ROOT / "oneapi" / "lib" / "libur_loader.so.0"
ADAPTER = ROOT / "oneapi" / "lib" / "libur_adapter_level_zero_v2.so.0"
NUMBERS = {"size_t": c_size_t, "uint64_t": c_uint64, "bool": ctypes.c_bool, "ur_bool_t": c_uint8}
FORMATS = {"size": "N", "uint64": "Q", "pointer": "P", "uint32": "I", "int32": "i", "bool": "?"}


class Handle(int):
    """A handle of Unified Runtime's, so that answers tell it from numbers."""


class Data(bytes):
    """Handle data, with the address at which Unified Runtime keeps it."""

    address: int


@functools.cache
def _prototypes() -> dict[str, list[tuple[str, str]]]:
    """(type, name) of each parameter of each function."""
    text = re.sub(r"//[^\n]*", "", HEADER.read_text())
    found: dict[str, list[tuple[str, str]]] = {}
    for function in re.finditer(r"ur_result_t UR_APICALL (ur\w+)\((.*?)\);", text, re.DOTALL):
        parts = [" ".join(part.split()) for part in function[2].split(",")]
        matches = [re.fullmatch(r"(.*?)(\w+)", part) for part in parts if part != "void"]
        found[function[1]] = [(each[1].strip(), each[2]) for each in matches if each is not None]
    return found


class UnifiedRuntime:
    """Its loader in this process, with the Level Zero v2 adapter alone and the layers named."""

    def __init__(self, layers: str = "UR_LAYER_PARAMETER_VALIDATION") -> None:
        os.environ["UR_ADAPTERS_FORCE_LOAD"] = str(ADAPTER.resolve())
        self._library = ctypes.CDLL(str(LIBRARY))
        config = c_void_p()
        self._call("urLoaderConfigCreate", byref(config))
        for layer in layers.split(","):
            self._call("urLoaderConfigEnableLayer", config, layer.encode())
        self._call("urLoaderInit", c_uint32(0), config)
        self._kept: list[Any] = []

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name)
        function.restype = c_uint32
        result = function(*arguments)
        if result:
            raise URError(name, result=Result(result))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = FUNCTIONS[name]

        def call(*arguments: Any) -> Any:
            return self._translated(function, dict(zip((arg.name for arg in function.args), arguments, strict=True)))

        return call

    # --- one call -------------------------------------------------------------------------------------------------

    def _translated(self, function: Function, given: dict[str, Any]) -> Any:
        kinds = {arg.name: arg.base_kind for arg in function.args}
        prototype = _prototypes()[function.name]
        names = [name for _type, name in prototype]
        arguments: list[Any] = []
        outputs: list[Any] = []
        for i, (c_type, name) in enumerate(prototype):
            following = names[i + 1] if i + 1 < len(names) else ""
            before = names[i - 1] if i else ""
            if name in kinds and not (name == "phEvent" and function.name.startswith("urEnqueue")):
                arguments.append(self._given(kinds[name], given[name]))
            elif name == "phEvent" and name in kinds:  # goes in and comes out
                outputs.append(c_void_p(given[name] or None))
                arguments.append(byref(outputs[-1]))
            elif kinds.get(following, "").startswith("sequence") and c_type == "uint32_t":
                arguments.append(c_uint32(len(given[following] or ())))
            elif kinds.get(before) in ("bytes", "pattern") or kinds.get(following) == "pattern":
                data = given[before] if before in kinds and kinds[before] in ("bytes", "pattern") else given[following]
                arguments.append(c_size_t(len(data)))
            else:
                break  # the outputs come last
        if name == "patternSize":
            raise AssertionError
        return self._answered(function, prototype[len(arguments) :], arguments, outputs)

    def _given(self, kind: str, value: Any) -> Any:
        family, _, name = kind.partition(":")
        if family == "sequence":
            return (c_void_p * max(1, len(value or ())))(*(value or ())) if value else None
        if family == "struct":
            if value is None:
                return None
            fields = list(vars(value).values())
            number = STRUCTURE_TYPES[name]
            packed = struct.pack("I4xP", number, 0) + b"".join(struct.pack("I", each) for each in fields)
            self._kept[:] = [ctypes.create_string_buffer(packed + bytes(8))]
            return self._kept[0]
        if family in ("bytes", "pattern"):
            if isinstance(value, Data):
                return c_void_p(value.address)
            return ctypes.c_char_p(bytes(value)) if value is not None else None
        if family in ("handle", "pointer"):
            return c_void_p(value or None)
        if family == "bool":
            return ctypes.c_bool(value)
        return c_size_t(value) if family == "size" else c_uint32(value)

    def _answered(
        self, function: Function, rest: list[tuple[str, str]], arguments: list[Any], outputs: list[Any]
    ) -> Any:
        call = functools.partial(self._call, function.name, *arguments)
        returns = function.returns
        if outputs or function.name.startswith("urEnqueue"):
            event = outputs[0] if outputs else c_void_p()
            call() if outputs else call(byref(event))
            return Handle(event.value or 0)
        if returns == "None":
            call()
            return None
        if returns.endswith("[]"):
            count = c_uint32()
            call(c_uint32(0), None, byref(count))
            found = (c_void_p * count.value)()
            call(count, found, None)
            return [Handle(each) for each in found]
        if returns.startswith("info:"):
            size = c_size_t()
            call(c_size_t(0), None, byref(size))
            value = ctypes.create_string_buffer(size.value)
            call(size, value, None)
            enumeration = INFOS[returns.removeprefix("info:")]
            number = next(each.value for each in reversed(arguments) if isinstance(each, c_uint32))
            return unpacked(enumeration.kinds[enumeration.enumeration(number).name], value.raw)
        address, size = c_void_p(), c_size_t()
        if returns == "bytes":
            call(byref(address), byref(size))
            data = Data(ctypes.string_at(address.value or 0, size.value))
            data.address = address.value or 0
            return data
        call(byref(address))
        return Handle(address.value or 0) if returns.startswith("handle") else address.value or 0


def unpacked(kind: str, raw: bytes) -> Any:
    """The value of an info query, as `xpushare.ur` answers it."""
    family = kind.partition(":")[0]
    if "[" in kind:
        element = kind.partition("[")[0]
        step = struct.calcsize(FORMATS.get(element, "I"))
        return [unpacked(element, raw[i : i + step]) for i in range(0, len(raw), step)]
    if family == "string":
        return raw.rstrip(b"\0").decode()
    if family == "bytes":
        return raw
    if family == "handle":
        return Handle(struct.unpack("P", raw)[0])
    if family == "struct":
        return struct.unpack_from("I", raw, 16)[0]
    return struct.unpack(FORMATS.get(family, "I"), raw)[0]
