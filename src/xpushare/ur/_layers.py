"""Installs layers, such as tracing and validation, around the functions of `xpushare.ur`. From the declarations, the
layers learn which objects a function creates and releases, and which of its arguments are handles and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any, Final

from xpushare.common.result import Result
from xpushare.core.declare import Point, add_face, layers_on
from xpushare.ur import _enums, _objects, _structs
from xpushare.ur._error import URError
from xpushare.ur._objects import HANDLES, Counted, Mem
from xpushare.ur._spec import FUNCTIONS, INFOS, Function

__all__ = ["attach"]

_points: Final[dict[str, Point]] = {}


def attach(points: Mapping[str, Point]) -> None:
    """Register the functions at these points, so that every active layer wraps them. Layers that become active later
    also wrap them.
    """
    _points.update(points)
    add_face(_apply)


def _apply() -> None:
    for name, point in _points.items():
        point.wrap(_layered(FUNCTIONS[name], point.plain) if layers_on else None)


# --- one call


def _layered(function: Function, call: Callable[..., Any]) -> Callable[..., Any]:
    from xpushare.core import printing, validation  # loaded late: a program without layers does not load them
    from xpushare.core.layers import TRACING, records_calls

    names = tuple(arg.name for arg in function.args)
    checks = validation.checks
    text = TRACING in layers_on and not records_calls()

    def layered(*values: Any, **options: Any) -> Any:
        given = {**dict(zip(names, values, strict=False)), **options}
        with (
            printing.logged(function.name, lambda: _shown(function, given)) if text else nullcontext() as outputs,
            validation.inside() as running,
        ):
            if "lifetime" in checks:
                _check_addresses(function, given)
            try:
                result = call(*values, **options)
            except URError as error:
                if not running.told:
                    _check(function, given, error, running.overrun)
                raise
            if "leaks" in checks:
                _keep(function, given, result)
            if outputs is not None and result is not None:
                outputs.append(("return", _value(result, function.returns, given.get("propName"))))
            return result

    return layered


# --- the books


@cache
def _ended() -> frozenset[str]:
    """Return the kinds of objects that functions release."""
    return frozenset(each.ends for each in FUNCTIONS.values())


@cache
def _addresses() -> frozenset[str]:
    """Return the kinds of objects that functions release by their address instead of by a handle."""
    return frozenset(kind for kind in _ended() if kind and kind not in HANDLES and not kind.endswith(" handle"))


def _name(handle: Counted) -> str:
    return f"handle {id(handle):#x} {handle!r}"


def _subject(function: Function, kind: str, given: Mapping[str, Any]) -> Any:
    """Return the first argument that is a handle of the kind `kind`. If objects of that kind have addresses instead of
    handles, return the first argument that is an address. Return None if there is no such argument. `given` maps names
    to arguments.
    """
    for arg in function.args:
        if arg.base_kind == (f"handle:{kind}" if kind in HANDLES else "pointer"):
            return given.get(arg.name)
    return None


def _made_address(function: Function, given: Mapping[str, Any], result: Any) -> int:
    """Return the address of the object that a call has created. The address is one of the call's outputs or, if none of
    them is an address, one of its arguments.
    """
    kinds = function.returns.split("+")
    outputs = dict(zip(kinds, result if len(kinds) > 1 else (result,), strict=True))
    return int(outputs["pointer"] if "pointer" in outputs else _subject(function, "", given))


def _keep(function: Function, given: Mapping[str, Any], result: Any) -> None:
    """Record the objects that a successful call has created and released. IPC handle data is left out, since the
    operations of `core` record it.
    """
    from xpushare.core.validation import books

    ended = function.ends
    for made in _ended().intersection(function.made):  # only kinds that can be given back
        if made in HANDLES:
            found = _subject(function, made, given) if result is None else result
            for each in found if isinstance(found, list | tuple) else (found,):
                if type(each) is HANDLES[made]:
                    books.made(each, _name(each), counted=True)
        elif not made.endswith(" handle"):
            address = _made_address(function, given, result)
            place = _objects.places.locate(address)
            nbytes = 0 if place is None else place.address + place.nbytes - address
            books.add(made, address, f"{made} {address:#x}, {nbytes} bytes", nbytes, place)
    if ended in HANDLES:
        books.released(_subject(function, ended, given))
    elif ended and not ended.endswith(" handle"):
        books.end(ended, int(_subject(function, ended, given)))


# --- what is wrong with a call

_TOO_MUCH: Final = (Result.ERROR_INVALID_SIZE, Result.ERROR_INVALID_BUFFER_SIZE)
_RELEASE: Final = "Attempting to release nonexistent"
_USE: Final = "There are no valid references to"


def _check(function: Function, given: Mapping[str, Any], error: URError, overrun: str) -> None:
    """Report why a call failed, if the validation layer can tell. `overrun` describes an access out of bounds that an
    operation of `core` found, or is empty.
    """
    from xpushare.core.validation import checks, tell

    if "lifetime" in checks and _check_lifetime(function, given):
        return
    if "bounds" in checks and not _check_bounds(function, given, error) and overrun:
        tell(overrun)


def _check_lifetime(function: Function, given: Mapping[str, Any]) -> bool:
    """Report arguments that are not valid handles or addresses, or no longer are. Return whether there were any."""
    from xpushare.core.validation import books, tell

    found = False
    for arg in function.args:
        value = given.get(arg.name)
        family, _, kind = arg.base_kind.partition(":")
        if value is None:
            continue
        if family in ("handle", "sequence") and kind in HANDLES:
            for each in value if isinstance(value, list | tuple) else (value,):
                if each is None or (type(each) is HANDLES[kind] and each.references):
                    continue
                found = True
                verb = _RELEASE if function.ends == kind else _USE
                wanted = f"{'an' if kind[0] in 'ae' else 'a'} {kind}"
                if isinstance(each, Counted):
                    wrong = "" if type(each) is HANDLES[kind] else f", which is not {wanted}"
                    tell(f"{verb} {_name(each)}{wrong}", books.of(each))
                else:
                    tell(f"{verb} `{arg.name}`, a {type(each).__name__}, which is not {wanted}")
        elif family == "pointer" and isinstance(value, int) and value:
            found |= _check_release(function, value) if function.ends in _addresses() else _check_gone(value)
    return found


def _check_release(function: Function, address: int) -> bool:
    """Report an address that cannot be released, because no function returned it or because it has already been
    released. Return whether it was reported.
    """
    from xpushare.core.validation import books, tell

    record = books.keyed(function.ends, address)
    if record is not None and record.count:
        return False
    name = f"{function.ends} {address:#x}" if record is None else record.what
    tell(f"{_RELEASE} {name}", record)
    return True


def _check_addresses(function: Function, given: Mapping[str, Any]) -> None:
    """Report, before a call, addresses of objects that the program has released, even if a queue or an export still
    keeps their memory alive.
    """
    from xpushare.core.validation import books, tell

    if function.ends in _addresses():
        return
    for arg in function.args:
        address = given.get(arg.name)
        if arg.base_kind != "pointer" or not isinstance(address, int) or not address:
            continue
        place: Any = _objects.places.locate(address)
        if place is None:
            if not _mapped(address):
                _check_gone(address)
            continue
        for kind in _addresses():
            record = books.keyed(kind, place.address)
            if record is not None and not record.count and record.owner() is place:
                tell(f"{_USE} {record.what}, which {address:#x} lies in", record)


def _mapped(address: int) -> bool:
    """Return whether any memory is mapped at an address in this process."""
    with open("/proc/self/maps") as file:
        for line in file:
            start, _, end = line.split(" ", 1)[0].partition("-")
            if int(start, 16) <= address < int(end, 16):
                return True
    return False


def _check_gone(address: int) -> bool:
    """Report an address that belongs to a released object of `xpushare.ur`. Return whether the address was reported."""
    from xpushare.core.validation import books, tell

    if _objects.places.locate(address) is not None:
        return False
    record = books.covering(_addresses(), address)
    if record is None or record.count:
        return False
    tell(f"{_USE} {record.what}, which {address:#x} lies in", record)
    return True


def _check_bounds(function: Function, given: Mapping[str, Any], error: URError) -> bool:
    """Report address arguments whose allocation ends before the last byte that the call would use. Return whether there
    were any.
    """
    from xpushare.core.validation import books, tell

    found = False
    size = given.get("size")
    rules = {function.errors[number].condition for number in range(len(function.checks))}
    for arg in function.args:
        address = given.get(arg.name)
        if isinstance(address, Mem) and error.result in _TOO_MUCH and repr(address) in error.message:
            found = True
            tell(f"`{arg.name}` {_name(address)}: {error.message}", books.of(address))
        if arg.kind != "pointer" or not isinstance(address, int):
            continue
        place: Any = _objects.places.locate(address)
        if place is None:
            continue
        left = place.address + place.nbytes - address
        record = books.covering(_addresses(), address)
        name = f"`{arg.name}` {address:#x}" + (f" in {record.what}" if record is not None else "")
        if isinstance(size, int):
            if size > left:
                found = True
                tell(f"{size} bytes from {name} exceed what is there, {left} bytes", record)
        elif error.result is Result.ERROR_INVALID_SIZE and not any(rule in error.message for rule in rules):
            found = True
            tell(f"{name}: {error.message}", record)
    return found


# --- the text of arguments and results


def _words(name: str) -> str:
    """Separate the words of a class name with underscores, for example `USMAllocInfo` as `USM_Alloc_Info`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)


@cache
def _prefix(enumeration: type[IntEnum] | type[IntFlag]) -> str:
    words = _words(enumeration.__name__)
    return f"UR_{words.removesuffix('s') if words.endswith('Flags') else words}_".upper()


def _flags(value: int, flags: type[IntFlag]) -> str:
    known = [member for member in flags if value & member]
    unknown = value & ~sum(set(known))
    shown = [f"{_prefix(flags)}{member.name}" for member in known]
    return " | ".join([*shown, f"unknown bit flags {unknown:032b}"] if unknown else shown) or "0"


def _enumerator(value: int, enumeration: type[IntEnum]) -> str:
    try:
        return f"{_prefix(enumeration)}{enumeration(value).name}"
    except ValueError:
        return "unknown enumerator"


def _value(value: Any, kind: str, asked: Any = None) -> str:
    """Format a value of the kind `kind` as Unified Runtime prints it. For bytes, only their number is printed. For a
    query, `asked` is the property that was asked for.
    """
    if value is None:
        return "nullptr"
    if "+" in kind:
        return f"{{{', '.join(map(_value, value, kind.split('+')))}}}"
    family, _, name = kind.removesuffix("?").partition(":")
    if family == "info":
        return _info(value, name, asked)
    if isinstance(value, list | tuple):
        element = kind.removesuffix("[]").replace("sequence:", "handle:")
        return f"{{{', '.join(_value(each, element) for each in value)}}}"
    if isinstance(value, Counted):
        return f"{id(value):#x}"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{{{len(value)} bytes}}"
    if family in ("struct", "value"):
        return _struct(value, name)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if family in ("flags", "enum") and (known := getattr(_enums, name, None)) is not None:
            return _flags(value, known) if family == "flags" else _enumerator(value, known)
        return f"{value:#x}" if family == "pointer" and value else "nullptr" if family == "pointer" else str(int(value))
    return value if isinstance(value, str) else type(value).__name__


def _info(value: Any, enumeration: str, asked: Any) -> str:
    known: Any = getattr(_enums, enumeration)
    member = known(asked) if asked in set(known) else None
    return _value(value, INFOS[enumeration].kinds.get(member.name, "") if member is not None else "")


def _struct(value: Any, name: str) -> str:
    fields = _structs.FIELD_KINDS.get(name, {})
    shown = ", ".join(f".{field} = {_value(getattr(value, field, None), kind)}" for field, kind in fields.items())
    return f"(struct ur_{_words(name).lower()}_t){{{shown}}}"


def _shown(function: Function, given: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    return [(arg.name, _value(given[arg.name], arg.kind)) for arg in function.args if arg.name in given]
