"""Defines how a function of `xpushare.ur` is declared, and holds the declarations in `FUNCTIONS` and `INFOS`.

Each function is declared once, in a module of `_functions`, by the decorator `@function` above its body. The other
modules generate everything else from the declarations: `_derived` builds the public functions with their checks, and
`_generate` writes the stub and the reference pages. A body has the parameters of the C function, with the same names
and in the same order, but an array and its count are one sequence. Output parameters and the sizes of queries are left
out, and so are the checks of them.

The annotation of a parameter or result gives its kind, which is a short string:

| annotation | kind | in Python |
|---|---|---|
| a class of `_objects` | `handle:X`, where `X` is a key of `HANDLES` | a handle |
| `Pointer`, `NullablePointer` | `pointer`, `pointer?` | an address, an `int` of 64 bits; 0 and `None` mean null |
| `Size` | `size` | an `int` of 64 bits, not negative |
| `bool` | `bool` | a `bool` |
| `Uint32` | `uint32` | an `int` of 32 bits, not negative |
| `String` | `string` | a `str`; in C, a C string |
| `LoggerCallback`, `EventCallback`, `HostTask` | `callback:X` | a callable; in C, a function pointer |
| `UserData` | `data?` | any object, which is passed to a callback; in C, a `void *` that may be null |
| `bytes` | `bytes` | a bytes-like object; in C, a pointer and, for some functions, a size |
| `Pattern` | `pattern` | a bytes-like object; in C, `pPattern` and `patternSize` |
| an `IntEnum` of `_enums` | `enum:X` | an `int`; as a result, a member of the class `X` |
| `Annotated[int, X]` with an `IntFlag` `X` | `flags:X` | an `int` |
| a class of `_structs` | `struct:X`, or `value:X` if C passes it by value | that dataclass |
| `tuple[X, ...]` | `sequence:X` | a sequence of handles; in C, an array and its count |
| `WaitList`, `DeviceList` | `sequence:X?` | the same; an empty sequence is null with the count 0 in C |
| `NativeHandle` | `size` | a driver's handle, an `int` of 64 bits |
| `X | None` | the kind of `X` followed by `?` | the same, or `None` |
| `list[X]` (only results) | the kind of `X` followed by `[]` | a list |
| `tuple[X, Y]` (only results) | the kinds of `X` and `Y`, joined by `+` | a tuple of several outputs |

A function whose last parameter is `propName` is a query. Its result has the kind `info:X`, which means that the `Info`
for the enumeration `X` gives the kind of each value. Values of queries can also have the kinds `int32`, `uint64` and
`K[3]` (three values of the kind `K`).

Numbers, results and checks follow Unified Runtime (`scripts/core/*.yml` and its parameter validation, commit 578c2a84
of 2026-08-22).
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, Union

from xpushare.common.aspects import Aspect
from xpushare.common.errors import XpuShareError
from xpushare.common.result import Result
from xpushare.core.declare import OPERATIONS, Operation
from xpushare.ur import _enums, _structs
from xpushare.ur._error import URError
from xpushare.ur._objects import HANDLES, Device, Event

__all__ = [
    "FUNCTIONS",
    "INFOS",
    "UNIVERSAL_ERRORS",
    "UNSUPPORTED_QUERY",
    "Arg",
    "Check",
    "DeviceList",
    "Error",
    "EventCallback",
    "Function",
    "HostTask",
    "Info",
    "Int32",
    "LoggerCallback",
    "NullablePointer",
    "NativeHandle",
    "Pattern",
    "Pointer",
    "Rule",
    "Size",
    "String",
    "Touched",
    "Uint32",
    "Uint64",
    "UserData",
    "WaitList",
    "function",
    "functions_of",
    "rule",
]

F = TypeVar("F", bound=Callable[..., Any])

Pointer = Annotated[int, "pointer"]
NullablePointer = Annotated[int, "pointer?"]
Size = Annotated[int, "size"]
Pattern = Annotated[bytes, "pattern"]
Int32 = Annotated[int, "int32"]
Uint32 = Annotated[int, "uint32"]
Uint64 = Annotated[int, "uint64"]
String = Annotated[str, "string"]
LoggerCallback = Annotated[Callable[[_enums.LoggerLevel, str, object], object], "callback:logger"]
EventCallback = Annotated[Callable[[Event, _enums.ExecutionInfo, object], object], "callback:event"]
HostTask = Annotated[Callable[[object], object], "callback:host_task"]
UserData = Annotated[object, "data?"]
DeviceList = Annotated[tuple[Device, ...], "sequence:device?"]
NativeHandle = Annotated[int, "size"]
WaitList = Annotated[tuple[Event, ...], "sequence:event?"]


class Arg(NamedTuple):
    """An argument of a function in Python."""

    name: str
    """UR's name of the parameter. For an array and its count, it is the array's name."""
    kind: str

    @property
    def optional(self) -> bool:
        return self.kind.endswith("?")

    @property
    def base_kind(self) -> str:
        """The kind without the `?` that marks an argument which may be None."""
        return self.kind.removesuffix("?")


class Error(NamedTuple):
    """An error result that UR documents for a function."""

    result: str
    """The name of the `Result`."""
    condition: str
    """The condition for the error, in words. Empty if UR states none."""


class Check(NamedTuple):
    """A check that is decided from the arguments alone."""

    result: str
    """Name of the `Result` if the condition is true."""
    condition: str
    """A Python expression. It can use the arguments' names, `invalid_bits` and the classes of `_enums`. The earlier
    checks have passed when it is evaluated.
    """
    origin: Literal["layer", "documented", "adapter"] = "layer"
    """`layer`: UR's parameter validation makes the check. `documented`: UR documents the check, but leaves it to the
    adapter. `adapter`: the check is undocumented, but the Level Zero adapter makes it, and UR's own tests require it.
    """


class Touched(NamedTuple):
    """The memory at one address that a command uses."""

    pointer: str
    """The argument with the address."""
    nbytes: str
    """The largest number of bytes that the command uses: the name of an argument, or `a * b` for two arguments."""
    use: Literal["hints", "reads", "writes"]
    """How the command uses the memory. Hints are only valid for USM memory."""


@dataclass(frozen=True)
class Function:
    """The declaration of one function of `xpushare.ur`."""

    name: str
    function_id: int
    """UR's number of the function (`ur_function_t`)."""
    summary: str
    notes: str
    args: tuple[Arg, ...]
    unchecked: frozenset[str]
    """Mandatory parameters of the C function, including outputs, that UR does not check for null."""
    returns: str
    """Kind of the result, or `None`."""
    errors: tuple[Error, ...]
    """The errors that UR documents: first those of `checks`, in the same order, then the others, and finally
    `UNIVERSAL_ERRORS`.
    """
    checks: tuple[Check, ...]
    """The checks in the order of UR's parameter validation: of pointers, of handles, of enumerations and flags, and
    others.
    """
    operations: tuple[Operation, ...]
    """The operations of `core` that the body calls."""
    results: Mapping[Result, Result]
    """Maps result codes of `core`'s errors to the codes that this function uses instead."""
    handles: tuple[type[XpuShareError], ...]
    """Errors of the operations that the body catches, so that they do not make the call fail."""
    makes: str
    """The kind of the object that a successful call creates or adds a reference to. The caller has to release it.
    Several kinds are joined by `+`.
    """
    ends: str
    """The kind of the object that the call releases."""
    touches: tuple[Touched, ...]
    """The memory that a command uses."""
    needs: Aspect | None
    """The aspect that the device needs for the command, if any."""
    python: str
    """The equivalent call in `xpushare`, for the reference pages. Empty if there is none, for example because Python
    counts references itself.
    """
    body: Callable[..., Any]

    @property
    def made(self) -> tuple[str, ...]:
        """The kinds of objects that the function creates, as a tuple."""
        return tuple(self.makes.split("+")) if self.makes else ()

    def result_of(self, result: Result) -> Result:
        """Return the result code that this function uses for an error of `core` whose general code is `result`."""
        return self.results.get(result, result)


FUNCTIONS: Final[dict[str, Function]] = {}

UNIVERSAL_ERRORS: Final[tuple[Error, ...]] = (
    Error("ERROR_UNINITIALIZED", ""),
    Error("ERROR_DEVICE_LOST", ""),
    Error("ERROR_ADAPTER_SPECIFIC", ""),
)
"""The errors that every function can have."""

UNSUPPORTED_QUERY: Final = ("UNSUPPORTED_ENUMERATION", "the adapter does not support `propName`")

# --- info queries ---------------------------------------------------------------------------------


class Info:
    """The queries of one enumeration. For each query, it has the kind of the value and the function that returns the
    value.
    """

    def __init__(
        self,
        enumeration: type[IntEnum],
        kinds: Mapping[str, str],
        answers: Mapping[Any, Callable[[Any], Any]] = MappingProxyType({}),
        optional: str = "",
        changing: str = "",
    ) -> None:
        """Declare the queries that the members of `enumeration` stand for.

        - `kinds`: a kind of value -> the names of the queries that return such a value
        - `answers`: a query -> the function that takes an object and returns the value
        - `optional`: the names of the queries that UR does not require of an adapter
        - `changing`: the names of the queries whose value can change
        """
        self.enumeration = enumeration
        self.kinds: Final = {name: kind for kind, names in kinds.items() for name in names.split()}
        self.optional: Final = frozenset(optional.split())
        self.lasting: Final = frozenset(each for each in answers if each.name not in changing.split())
        """The queries whose value never changes."""
        self._answers = answers
        INFOS[enumeration.__name__] = self

    def answer(self, asked: Any, about: Any) -> Any:
        """Return the value of the query `asked` for the object `about`. Raise `ERROR_UNSUPPORTED_ENUMERATION` if the
        query is not answered.
        """
        found = self._answers.get(asked)
        if found is None:
            raise URError(f"{about!r} does not answer {asked!r}", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
        return found(about)


INFOS: Final[dict[str, Info]] = {}
"""The queries of each enumeration, by the enumeration's name."""

# --- rules ----------------------------------------------------------------------------------------

Rule = tuple[Check, str]
"""A check, and its condition in words."""


def rule(result: str, condition: str, words: str, origin: Literal["layer", "documented", "adapter"] = "layer") -> Rule:
    return Check(f"ERROR_{result}", condition, origin), words


def _null_rule(arg: Arg) -> Rule:
    if arg.kind.startswith("handle:"):
        return rule("INVALID_NULL_HANDLE", f"{arg.name} is None", f"`{arg.name}` is null")
    condition = f"not {arg.name}" if arg.kind == "pointer" else f"{arg.name} is None"
    return rule("INVALID_NULL_POINTER", condition, f"`{arg.name}` is null")


def _mask(flags: str) -> str:
    return f"0x{_enums.INVALID_BITS[getattr(_enums, flags)]:08x}"


def _value_rules(arg: Arg) -> Iterable[Rule]:
    family, _, name = arg.base_kind.partition(":")
    if family == "enum":
        # UR's validation only compares an enumeration with its last value. Smaller numbers that are not members reach
        # the adapter, which answers `ERROR_UNSUPPORTED_ENUMERATION`.
        last = max(getattr(_enums, name))
        yield rule(
            "INVALID_ENUMERATION",
            f"not 0 <= {arg.name} <= 0x{last:x}",  # a number means an argument, which is named as its class
            f"`{arg.name}` is not in the range up to `{name}.{last.name}`",
        )
    elif family == "flags":
        yield rule(
            "INVALID_ENUMERATION",
            f"invalid_bits({name}, {arg.name})",
            f"`{arg.name}` has bits that are not `{name}` (mask {_mask(name)})",
        )
    elif family == "struct":
        guard = f"{arg.name} is not None and " if arg.optional else ""
        for field, kind in _structs.FIELD_KINDS[name].items():
            if kind.startswith("flags:"):
                flags = kind.removeprefix("flags:")
                yield rule(
                    "INVALID_ENUMERATION",
                    f"{guard}invalid_bits({flags}, {arg.name}.{field})",
                    f"`{arg.name}.{field}` has bits that are not `{flags}` (mask {_mask(flags)})",
                )


# --- declarations ---------------------------------------------------------------------------------

_HANDLE_KINDS: Final = {cls: kind for kind, cls in HANDLES.items()}


def _kind(annotation: Any) -> str:
    """Return the kind of an argument or a result, given its annotation in the signature of the function's body. The
    module's docstring lists the kinds.
    """
    if annotation is types.NoneType:
        return "None"
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        said = parts[1]
        return said if isinstance(said, str) else f"flags:{said.__name__}"
    if origin in (types.UnionType, Union):
        return f"{_kind(parts[0])}?"
    if origin is list:
        return f"{_kind(parts[0])}[]"
    if origin is tuple and parts[-1] is not Ellipsis:
        return "+".join(map(_kind, parts))
    if origin is tuple:
        return f"sequence:{_HANDLE_KINDS[parts[0]]}"
    if annotation in _HANDLE_KINDS:
        return f"handle:{_HANDLE_KINDS[annotation]}"
    if annotation.__name__ in _structs.FIELD_KINDS:
        return f"{'value' if annotation.__name__ in _structs.BY_VALUE else 'struct'}:{annotation.__name__}"
    if issubclass(annotation, IntEnum) and not issubclass(annotation, IntFlag):
        return f"enum:{annotation.__name__}"
    if annotation in (bool, bytes):
        return str(annotation.__name__)
    raise TypeError(f"{annotation!r} says no kind")


def _errors(rules: Iterable[Rule], others: Iterable[str | tuple[str, str]]) -> tuple[Error, ...]:
    pairs = (each if isinstance(each, tuple) else (each, "") for each in others)
    return (
        *(Error(check.result, words) for check, words in rules),
        *(Error(f"ERROR_{result}", condition) for result, condition in pairs),
        *UNIVERSAL_ERRORS,
    )


def _place(body: Callable[..., Any]) -> str:
    """Return the file and the line at which a function is defined."""
    code = inspect.unwrap(body).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def function(
    function_id: int,
    *errors: str | tuple[str, str],
    rules: tuple[Rule, ...] = (),
    unchecked: tuple[str, ...] = (),
    operations: tuple[str, ...] = (),
    invalid: Result = Result.ERROR_INVALID_ARGUMENT,
    unsupported: Result = Result.ERROR_UNSUPPORTED_FEATURE,
    handles: tuple[type[XpuShareError], ...] = (),
    makes: str = "",
    ends: str = "",
    touches: tuple[Touched, ...] = (),
    needs: Aspect | None = None,
    python: str = "",
) -> Callable[[F], F]:
    """Return a decorator that declares a function of `xpushare.ur`. The decorated function is the body, and has the
    name of UR's function. The decorator adds the declaration to `FUNCTIONS` and returns the body unchanged. Raises
    TypeError if a function of this name is declared already, elsewhere.

    The parameters of the body become the parameters of the public function. The first paragraph of the body's docstring
    becomes `Function.summary`, and the rest becomes `Function.notes`.

    - `function_id`: UR's number of the function
    - `errors`: the error results that do not come from a check, in UR's order. Each is a name without `ERROR_`, or a
      pair of such a name and the condition for the error.
    - `rules`: additional checks. They run after the checks that follow from the kinds of the arguments.
    - `unchecked`: the names of mandatory parameters that are not checked for null, because UR does not check them
    - `operations`: the names of the operations of `core` that the body calls
    - `invalid`: the result code if `core` raises `InvalidArgumentError`
    - `unsupported`: the result code if `core` raises `FeatureNotSupportedError`
    - `handles`, `makes`, `ends`, `touches`, `needs`, `python`: the fields of `Function` with these names
    """

    def declare(body: F) -> F:
        known = FUNCTIONS.get(body.__name__)
        # A later one would silently replace the other. A module whose load was interrupted is loaded again, whole.
        if known and _place(known.body) != _place(body):
            raise TypeError(f"{known.name} is declared twice: in {_place(known.body)} and in {_place(body)}")
        hints = typing.get_type_hints(body, include_extras=True)
        returned = hints.pop("return")
        args = tuple(Arg(name, _kind(annotation)) for name, annotation in hints.items())
        nullable = [
            arg
            for arg in args
            if not arg.optional
            and arg.name not in unchecked
            and arg.kind.startswith(
                ("handle:", "pointer", "struct:", "sequence:", "bytes", "pattern", "string", "callback:")
            )
        ]
        all_rules = (
            *(_null_rule(arg) for arg in nullable if not arg.kind.startswith("handle:")),
            *(_null_rule(arg) for arg in nullable if arg.kind.startswith("handle:")),
            *(each for arg in args for each in _value_rules(arg)),
            *rules,
        )
        summary, _, notes = inspect.cleandoc(body.__doc__ or "").partition("\n\n")
        asked = args[-1].kind if args and args[-1].name == "propName" else ""
        FUNCTIONS[body.__name__] = Function(
            name=body.__name__,
            function_id=function_id,
            summary=" ".join(summary.split()),
            notes=" ".join(notes.split()),
            args=args,
            unchecked=frozenset(unchecked),
            returns=asked.replace("enum:", "info:") or _kind(returned),
            errors=_errors(all_rules, errors),
            checks=tuple(check for check, _ in all_rules),
            operations=tuple(OPERATIONS[name] for name in operations),
            results={
                general: own
                for general, own in (
                    (Result.ERROR_INVALID_ARGUMENT, invalid),
                    (Result.ERROR_UNSUPPORTED_FEATURE, unsupported),
                )
                if own is not general
            },
            handles=handles,
            makes=makes,
            ends=ends,
            touches=touches,
            needs=needs,
            python=python,
            body=body,
        )
        return body

    return declare


def functions_of(operation: Operation) -> tuple[str, ...]:
    """Return the names of the functions of `xpushare.ur` that call an operation of `core`."""
    return tuple(each.name for each in FUNCTIONS.values() if operation in each.operations)
