"""Builds the public functions of `xpushare.ur` from their declarations. Each one is a wrapper around the declared body.

A wrapper is compiled once, when the package is imported. It has UR's parameter names and converts the arguments to the
types that the body expects. It rejects arguments that no C program could pass, makes the declared checks in UR's order,
checks that every handle is valid, and converts errors to `URError`.

A layer such as tracing or validation can replace the wrapper. It sets `_layer` in the wrapper's globals, and the
wrapper then only calls `_layer`. Replacing the functions in the module would not be enough, since programs import them
by name.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Any, Final, NoReturn

from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core.declare import Point
from xpushare.ur import _enums, _objects, _structs
from xpushare.ur._error import URError, fail, out_of_memory
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._objects import HANDLES, Counted
from xpushare.ur._spec import Arg, Function
from xpushare.ur.loader._builds import BUILDS, TABLES

__all__ = [
    "CALLBACKS",
    "MEANINGS",
    "UNSUPPORTED",
    "annotation",
    "build",
    "documentation",
    "meaning",
    "result_annotation",
    "unsupported",
]

# --- functions that a wrapper calls if an argument is not as expected ------------------------------


def _refuse(result: Result, message: str) -> NoReturn:
    raise URError(message, result=result)


def _number(value: Any, name: str, result: Result = Result.ERROR_INVALID_ARGUMENT) -> int:
    """Convert `value` to an int of any size. Raise `URError` with `result` if it is not an integer. `name` is the name
    of the argument in the message.
    """
    try:
        return operator.index(value)
    except TypeError:
        _refuse(result, f"`{name}` is an int, not {type(value).__name__}")


def _size(value: Any, name: str) -> int:
    """Convert `value` to a `size_t` or an address. Raise `URError` if it does not fit into 64 bits. `name` is the name
    of the argument in the message.
    """
    number = _number(value, name)
    if not 0 <= number < 1 << 64:
        _refuse(Result.ERROR_INVALID_VALUE, f"`{name}` has 64 bits, {number} does not fit")
    return number


def _pointer(value: Any, name: str) -> int:
    return 0 if value is None else _size(value, name)


def _enumeration(value: Any, name: str) -> int:
    return _number(value, name, Result.ERROR_INVALID_ENUMERATION)


def _bytes(value: Any, name: str) -> bytes | None:
    if value is None:
        return None
    try:
        return bytes(memoryview(value))
    except (TypeError, ValueError):  # a released memoryview raises ValueError
        _refuse(Result.ERROR_INVALID_ARGUMENT, f"`{name}` is bytes, not {type(value).__name__}")


def _uint32(value: Any, name: str) -> int:
    number = _number(value, name)
    if not 0 <= number < 1 << 32:
        _refuse(Result.ERROR_INVALID_VALUE, f"`{name}` has 32 bits, {number} does not fit")
    return number


def _string(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        _refuse(Result.ERROR_INVALID_ARGUMENT, f"`{name}` is a str, not {type(value).__name__}")
    return value


def _callback(value: Any, name: str) -> Any:
    if value is not None and not callable(value):
        _refuse(Result.ERROR_INVALID_ARGUMENT, f"`{name}` is callable, a {type(value).__name__} is not")
    return value


def _sequence(value: Any, name: str) -> tuple[Any, ...]:
    try:
        return tuple(value)
    except TypeError:
        _refuse(Result.ERROR_INVALID_ARGUMENT, f"`{name}` is a sequence, not {type(value).__name__}")


_FIELDS: Final[Mapping[str, Callable[[Any, str], int]]] = {
    "uint32": _uint32,
    "size": _size,
    "pointer": _pointer,
    "bool": lambda value, name: _number(value, name) != 0,
}


def _struct(value: Any, name: str, cls: type[Any]) -> Any:
    """Check that `value` is of the dataclass `cls`, and return a copy in which all fields are ints."""
    if not isinstance(value, cls):
        _refuse(Result.ERROR_INVALID_ARGUMENT, f"`{name}` is a {cls.__name__}, not {type(value).__name__}")
    fields: dict[str, int] = {}
    for field, kind in _structs.FIELD_KINDS[cls.__name__].items():
        number = getattr(value, field)
        take = _FIELDS.get(kind, _enumeration)
        fields[field] = take(number, f"{name}.{field}")
    return cls(**fields)


def _member(cls: type[IntEnum], value: int, name: str, result: Result) -> IntEnum:
    try:
        return cls(value)
    except ValueError:
        _refuse(result, f"`{name}`: no {cls.__name__} has the number {value:#x}")


def _dead(value: Any, name: str, cls: type[Counted], result: Result) -> NoReturn:
    why = f"{value!r}" if isinstance(value, cls) else f"a {type(value).__name__}, not a ur.{cls.__name__}"
    _refuse(result, f"`{name}` is {why}")


def _elsewhere(context: _objects.Context, device: _objects.Device) -> NoReturn:
    _refuse(Result.ERROR_INVALID_DEVICE, f"{device!r} is not in {context!r}")


# --- results --------------------------------------------------------------------------------------

_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "uint32": int,
    "uint64": int,
    "size": int,
    "pointer": int,
    "bool": bool,
    "string": str,
    "bytes": bytes,
}


def _decoder(kind: str) -> Callable[[Any], Any] | None:
    """Return the function that converts a body's result to the class for the kind `kind`. Return None if no conversion
    is needed. `_spec` lists the kinds.
    """
    family, _, name = kind.partition(":")
    if family in ("enum", "flags"):
        found: type[IntEnum] | type[IntFlag] | None = getattr(_enums, name, None)  # None: lists, which are empty here
        return found
    return _PLAIN.get(kind)


def _decoders(info: str) -> dict[int, Callable[[Any], Any]]:
    members = getattr(_enums, info).__members__
    found = {members[name]: _decoder(kind) for name, kind in INFOS[info].kinds.items()}
    return {member: decoder for member, decoder in found.items() if decoder is not None}


CALLBACKS: Final[Mapping[str, str]] = MappingProxyType(
    {"logger": "LoggerLevel, str, object", "event": "Event, ExecutionInfo, object", "host_task": "object"}
)
"""Maps the name in a callback's kind to the types of the callback's arguments."""

# --- the meanings of arguments ----------------------------------------------------------------------------------------

MEANINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "DeviceType": "type of the devices to return",
        "advice": "the expected use of the memory",
        "alignment": "alignment in bytes, a power of two, or 0 for the default",
        "allocationSize": "size in bytes of the allocation, or 0 if it is not known yet",
        "blocking": "whether to wait until the command is complete",
        "blockingMap": "whether to wait until the bytes are mapped",
        "blockingRead": "whether to wait until the bytes are read",
        "blockingWrite": "whether to wait until the bytes are written",
        "bufferCreateType": "the kind of part, always `REGION`",
        "bufferOrigin": "where the box begins in the buffer",
        "bufferRowPitch": "bytes from one row of the buffer to the next, or 0 if rows are adjacent",
        "bufferSlicePitch": "bytes from one slice of the buffer to the next, or 0 if slices are adjacent",
        "commandDevice": "the device whose commands access the memory",
        "data": "an object that the function receives",
        "dstOffset": "offset of the first byte to write, in bytes",
        "dstOrigin": "where the box begins in the target",
        "dstPitch": "bytes from one row of the target to the next",
        "dstRowPitch": "bytes from one row of the target to the next, or 0 if rows are adjacent",
        "dstSlicePitch": "bytes from one slice of the target to the next, or 0 if slices are adjacent",
        "execStatus": "the state of the command at which the callback is called",
        "flags": "options",
        "hAdapter": "the adapter",
        "hBuffer": "the buffer",
        "hBufferDst": "the buffer that is written",
        "hBufferSrc": "the buffer that is read",
        "hContext": "the context",
        "hDevice": "the device",
        "hEvent": "the event",
        "hMem": "the buffer",
        "hMemory": "the buffer",
        "hNativeContext": "the driver's handle of the context",
        "hNativeDevice": "the driver's handle of the device",
        "hNativeEvent": "the driver's handle of the event",
        "hNativePlatform": "the driver's handle of the platform",
        "hNativeQueue": "the driver's handle of the queue",
        "hPhysMem": "the physical memory",
        "hPhysicalMem": "the physical memory",
        "hPlatform": "the platform",
        "hPool": "the pool",
        "hQueue": "the queue",
        "handleTypeToExport": "the kind of handle by which another API imports the memory",
        "height": "number of rows",
        "hostOrigin": "where the box begins in the host's memory",
        "hostRowPitch": "bytes from one row in the host's memory to the next, or 0 if rows are adjacent",
        "hostSlicePitch": "bytes from one slice in the host's memory to the next, or 0 if slices are adjacent",
        "level": "the lowest level of messages that are passed to the callback",
        "mapFlags": "whether the program will read or write the mapped bytes",
        "minBytesToKeep": "number of unused bytes that the pool may keep",
        "offset": "offset in bytes",
        "pDesc": "a description of the queue",
        "pDst": "address of the first byte to write",
        "pEventDesc": "options of the event",
        "pFrontendOption": "an option of a compiler",
        "pHostMem": "address of the host memory",
        "pIPCEventHandleData": "handle data of an event",
        "pIPCMemHandleData": "handle data of memory",
        "pIPCPhysMemHandleData": "handle data of physical memory",
        "pMappedPtr": "the address that `urEnqueueMemBufferMap` returned",
        "pMem": "address of the memory",
        "pPattern": "the bytes to repeat",
        "pPool": "the pool",
        "pPoolDesc": "options of the pool",
        "pPropValue": "the new value",
        "pProperties": "options",
        "pRegion": "the part of the buffer to cover",
        "pSrc": "address of the first byte to read",
        "pStart": "address at which the range begins",
        "pUSMDesc": "options of the allocation",
        "pUserData": "an object that the callback receives",
        "peerDevice": "the device that has the memory",
        "pfnHostTask": "the function to run on the host",
        "pfnLoggerCallback": "the callback",
        "pfnNotify": "the callback",
        "phDevices": "the devices",
        "phEvent": "an event to use instead of a new one",
        "phEventWaitList": "events that have to be complete before the command runs",
        "pitch": "bytes from one row to the next",
        "pool": "the pool to allocate from",
        "propName": "the property to return",
        "region": "size of the box",
        "size": "number of bytes",
        "srcOffset": "offset of the first byte to read, in bytes",
        "srcOrigin": "where the box begins in the source",
        "srcPitch": "bytes from one row of the source to the next",
        "srcRowPitch": "bytes from one row of the source to the next, or 0 if rows are adjacent",
        "srcSlicePitch": "bytes from one slice of the source to the next, or 0 if slices are adjacent",
        "width": "number of bytes per row",
        # Where a function uses a name in a sense of its own
        "urEventWait.phEventWaitList": "the events",
        "urUSMPoolSetInfoExp.propName": "the property to change",
        "urVirtualMemMap.offset": "offset in the physical memory, in bytes",
        "urVirtualMemMap.flags": "how commands may access the memory",
        "urVirtualMemSetAccess.flags": "how commands may access the memory",
        "urEnqueueUSMDeviceAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMHostAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMSharedAllocExp.pPool": "the pool to allocate from",
        "urEnqueueUSMFreeExp.pPool": "the pool of the memory",
    }
)
"""The meanings. A key is an argument's name, or the names of a function and its argument, joined by a dot."""


def meaning(function: str, argument: str) -> str:
    """Return the meaning of an argument, as a sentence."""
    text = MEANINGS.get(f"{function}.{argument}") or MEANINGS[argument]
    return f"{text[0].upper()}{text[1:]}."


# --- signatures -----------------------------------------------------------------------------------


def annotation(kind: str) -> str:
    """Return the type annotation for an argument or a result of the kind `kind`, as in the docs and the stub."""
    if "+" in kind:
        return f"tuple[{', '.join(map(annotation, kind.split('+')))}]"
    base = kind.removesuffix("?")
    family, _, name = base.partition(":")
    if base.endswith("]"):
        return f"list[{annotation(base[: base.index('[')])}]"
    if family == "handle":
        text = HANDLES[name].__name__
    elif family == "sequence":
        text = f"Sequence[{HANDLES[name].__name__}]"
    elif family in ("struct", "value"):
        text = name
    elif family in ("enum", "flags"):
        text = f"{name} | int"
    elif family == "info":
        text = "Any"
    elif family == "callback":
        text = f"Callable[[{CALLBACKS[name]}], object]"
    else:
        text = {
            "bool": "bool",
            "string": "str",
            "bytes": "bytes | bytearray | memoryview",
            "pattern": "bytes | bytearray | memoryview",
            "None": "None",
            "data": "object",
        }.get(base, "int")
    return f"{text} | None" if kind.endswith("?") and text not in ("None", "object") else text


def result_annotation(kind: str) -> str:
    """Return the type annotation for a result of the kind `kind`. Results are more specific than arguments. For
    example, an enumeration is always a member of its class, never a plain int.
    """
    if kind == "bytes":
        return "bytes"
    return annotation(kind).replace(" | int", "")


def documentation(function: Function) -> str:
    """Return the docstring of a public function."""
    lines = [function.summary]
    if function.notes:
        lines += ["", function.notes]
    if function.args:
        lines += ["", "Args:", *(f"    {arg.name}: {meaning(function.name, arg.name)}" for arg in function.args)]
    lines += ["", "Raises `URError` with one of these results:", ""]
    lines += [f"- `{error.result}`: {error.condition}" for error in function.errors if error.condition]
    others = dict.fromkeys(f"`{error.result}`" for error in function.errors if not error.condition)
    if others:
        lines.append(f"- other results, for which UR states no condition: {', '.join(others)}")
    return "\n".join(lines)


# --- the wrappers ---------------------------------------------------------------------------------


def _convert(arg: Arg) -> Iterator[str]:
    """Yield the source lines of a wrapper that convert an argument to the type that the checks and the body expect."""
    name, (family, _, kind) = arg.name, arg.base_kind.partition(":")
    if family == "pointer":
        yield f"if {name}.__class__ is not int or not 0 <= {name} < {1 << 64}: {name} = _pointer({name}, {name!r})"
    elif family == "size":
        yield f"if {name}.__class__ is not int or not 0 <= {name} < {1 << 64}: {name} = _size({name}, {name!r})"
    elif family == "uint32":
        yield f"if {name}.__class__ is not int or not 0 <= {name} < {1 << 32}: {name} = _uint32({name}, {name!r})"
    elif family in ("string", "callback"):
        yield f"{name} = _{family}({name}, {name!r})"
    elif family == "bool":
        yield f"if {name}.__class__ is not bool: {name} = _number({name}, {name!r}) != 0"
    elif family in ("bytes", "pattern"):
        yield f"if {name}.__class__ is not bytes: {name} = _bytes({name}, {name!r})"
    elif family == "enum":
        yield f"if {name}.__class__ is not _c_{kind}: {name} = _enumeration({name}, {name!r})"
    elif family == "flags":
        yield f"if {name}.__class__ is not int: {name} = _enumeration({name}, {name!r})"
    elif family == "struct":
        yield f"if {name} is not None: {name} = _struct({name}, {name!r}, _c_{kind})"
    elif family == "value":
        yield f"{name} = _struct({name}, {name!r}, _c_{kind})"
    elif family == "sequence":
        if arg.optional:
            empty = f"{name} is None or {name}.__class__ is list and not {name}"  # arrays are neither true nor false
            yield f"{name} = () if {empty} else _sequence({name}, {name!r})"
        else:
            yield f"if {name} is not None: {name} = _sequence({name}, {name!r})"


def _validate(arg: Arg) -> Iterator[str]:
    """Yield the source lines of a wrapper that reject an invalid handle or an unknown enumeration value. They run after
    the declared checks.
    """
    name, (family, _, kind) = arg.name, arg.base_kind.partition(":")
    if family == "handle":
        cls = HANDLES[kind].__name__
        test = f"{name}.__class__ is not _c_{cls} or not {name}.references"
        if arg.optional:
            test = f"{name} is not None and ({test})"
        yield f"if {test}: _dead({name}, {name!r}, _c_{cls}, _c_{cls}.dead)"
    elif family == "sequence":
        cls = HANDLES[kind].__name__
        yield f"for _each in {name}:"
        yield f"    if _each.__class__ is not _c_{cls} or not _each.references:"
        yield f"        _dead(_each, {name!r}, _c_{cls}, _bad_element)"
    elif family == "enum":
        yield f"if {name}.__class__ is not _c_{kind}: {name} = _member(_c_{kind}, {name}, {name!r}, _no_member)"


def _source(function: Function) -> str:
    """Return the source code of a function's wrapper."""
    signature = ", ".join(f"{arg.name}: {annotation(arg.kind)}" for arg in function.args)
    body = [statement for arg in function.args for statement in _convert(arg)]
    lists = [arg.name for arg in function.args if arg.kind.startswith("sequence:")]
    for number, check in enumerate(function.checks):
        # A rule about every element holds for an empty list. Most wait lists are empty, and a generator would be slow.
        guard = f"{lists[0]} and " if check.condition.startswith("any(") else ""
        body.append(f"if {guard}{check.condition}: _refuse(_r_{check.result}, {function.errors[number].condition!r})")
    # Handles come first, since UR's own validation does not check an enumeration's number.
    late = [arg for arg in function.args if arg.base_kind.startswith("enum:")]
    for arg in [*(arg for arg in function.args if arg not in late), *late]:
        body += _validate(arg)
    kinds = {arg.base_kind: arg for arg in function.args}
    if "handle:context" in kinds and "handle:device" in kinds:
        context, device = kinds["handle:context"].name, kinds["handle:device"]
        guard = f"{device.name} is not None and " if device.optional else ""
        body.append(f"if {guard}{device.name} not in {context}.devices: _elsewhere({context}, {device.name})")
    call = f"_body({', '.join(arg.name for arg in function.args)})"
    if function.returns.startswith("info:"):
        body += [f"_value = {call}", "_decode = _decoders.get(propName)"]
        body.append("return _value if _decode is None or _value is None else _decode(_value)")
    else:
        body.append(f"return {call}")
    lines = "".join(f"        {line}\n" for line in body)
    given = ", ".join(arg.name for arg in function.args)
    return (
        f"def {function.name}({signature}) -> {result_annotation(function.returns)}:\n"
        f"    if (_wrapper := _layer) is not None: return _wrapper({given})\n"
        f"    try:\n{lines}"
        f"    except _XpuShareError as _error:\n        _fail({function.name!r}, _error, _results)\n"
        f"    except MemoryError:\n        _out_of_memory({function.name!r})\n"
    )


def _element_result(function: Function) -> Result:
    """Return the result code for an invalid element of a sequence. It is the code that the function declares for null
    elements.
    """
    for check in function.checks:
        if check.condition.startswith("any("):
            return Result[check.result]
    return Result.ERROR_INVALID_VALUE


def _member_result(function: Function) -> Result:
    """Return the result code for an unknown value of an enumeration. For queries this is
    `ERROR_UNSUPPORTED_ENUMERATION`, since newer versions of Unified Runtime may define more queries. Otherwise it is
    `ERROR_INVALID_ENUMERATION`.
    """
    queries = any(arg.name == "propName" for arg in function.args)
    return Result.ERROR_UNSUPPORTED_ENUMERATION if queries else Result.ERROR_INVALID_ENUMERATION


_HELPERS: Final[dict[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (
        _bytes, _callback, _dead, _elsewhere, _enumeration, _member, _number, _pointer, _refuse, _sequence,
        _size, _string, _struct, _uint32,
    )
}  # fmt: skip


_CLASSES: Final[dict[str, Any]] = {
    **{cls.__name__: cls for cls in HANDLES.values()},
    **{name: getattr(_enums, name) for name in _enums.__all__ if name[0].isupper() and name != "INVALID_BITS"},
    **{name: getattr(_structs, name) for name in _structs.FIELD_KINDS},
}


def _build(function: Function) -> tuple[Callable[..., Any], Point]:
    text = _source(function)
    scope: dict[str, Any] = {
        "__name__": "xpushare.ur",
        "Any": Any,
        "Callable": Callable,
        "Sequence": Sequence,
        "invalid_bits": _enums.invalid_bits,
        **_CLASSES,
        **{f"_c_{name}": _CLASSES[name] for name in re.findall(r"\b_c_(\w+)", text)},
        **{f"_r_{name}": Result[name] for name in re.findall(r"\b_r_(\w+)", text)},
        **_HELPERS,
        "_XpuShareError": XpuShareError,
        "_bad_element": _element_result(function),
        "_fail": fail,
        "_body": function.body,
        "_layer": None,
        "_no_member": _member_result(function),
        "_out_of_memory": out_of_memory,
        "_results": function.results,
    }
    if function.returns.startswith("info:"):
        scope["_decoders"] = _decoders(function.returns.removeprefix("info:"))
    code = compile("from __future__ import annotations\n" + text, f"<xpushare.ur.{function.name}>", "exec")
    plain = {**scope}
    exec(code, plain)
    exec(code, scope)
    wrapper: Callable[..., Any] = scope[function.name]
    wrapper.__doc__ = documentation(function)
    return wrapper, Point(scope, "_layer", plain[function.name], None)


def build() -> dict[str, tuple[Callable[..., Any], Point]]:
    """Build all public functions. Return, by name, each function and the `Point` at which a layer can wrap it."""
    return {name: _build(function) for name, function in FUNCTIONS.items()}


# --- the functions that are not supported ----------------------------------------------------------

UNSUPPORTED: Final = tuple(
    sorted(
        {
            name
            for layouts in TABLES.values()
            for builds, names in layouts.items()
            if BUILDS[0] in builds.split()
            for name in names.split()
        }
        - FUNCTIONS.keys()
    )
)
"""The names of the functions of Unified Runtime that this package does not implement."""


def _answer_unsupported(name: str) -> Callable[..., NoReturn]:
    def answer(*_arguments: object) -> NoReturn:
        _refuse(Result.ERROR_UNSUPPORTED_FEATURE, f"{name}: xpushare does not support this function")

    answer.__name__ = answer.__qualname__ = name
    answer.__module__ = "xpushare.ur"
    answer.__doc__ = "Not supported. Always raise `URError` with the result `ERROR_UNSUPPORTED_FEATURE`."
    return answer


def unsupported() -> dict[str, Callable[..., NoReturn]]:
    """Build the functions of Unified Runtime that this package does not implement. They always raise `URError` with the
    result `ERROR_UNSUPPORTED_FEATURE`.
    """
    return {name: _answer_unsupported(name) for name in UNSUPPORTED}
