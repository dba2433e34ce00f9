"""How a function of `xpushare.ur` is declared, and where the declarations are found.

A function is declared once, in a module of `_functions`: `@function` and the body below it. The public function with
its validation (`_derived`), the stub and the reference pages (`_generate`) derive from that declaration, and so do the
links between functions and the operations of `core`. A body takes the C function's inputs in their order and under
their names. An array and its count are one sequence. Outputs and the sizes of info queries are omitted, and so are the
rules about them. Annotations give the kind of each argument:

| annotation | kind | in Python |
|---|---|---|
| a class of `_objects` | `handle:X` | an object; `HANDLES` has the kinds |
| `Pointer`, `NullablePointer` | `pointer`, `pointer?` | an address, `int` of 64 bits; 0 and `None` are null |
| `Size` | `size` | `int` of 64 bits, not negative |
| `bool` | `bool` | `bool` |
| `Uint32` | `uint32` | `int` of 32 bits, not negative |
| `String` | `string` | `str`; a C string |
| `LoggerCallback`, `EventCallback`, `HostTask` | `callback:X` | a callable, for a C function pointer |
| `UserData` | `data?` | any object, handed to a callback; `void *`, which may be null |
| `bytes` | `bytes` | bytes-like; a pointer to data together with the size of it, where UR takes the size |
| `Pattern` | `pattern` | bytes-like; `pPattern` and `patternSize` |
| an `IntEnum` of `_enums` | `enum:X` | `int`, answered as class `X` |
| `Annotated[int, X]`, `X` an `IntFlag` | `flags:X` | `int` |
| a class of `_structs` | `struct:X` | that dataclass; `value:X` if C has the struct itself, not a pointer to it |
| `tuple[X, ...]` | `sequence:X` | a sequence of handles and its count |
| `WaitList`, `DeviceList` | `sequence:X?` | the same; empty is UR's null with count 0 |
| `NativeHandle` | `size` | the driver's handle, any `int` of 64 bits |
| `X | None` | the kind of `X`, and `?` | `None` is allowed |
| `list[X]` (a result) | the kind of `X`, and `[]` | a list |
| `tuple[X, Y]` (a result) | the kinds, with `+` | a tuple: several outputs, in their order |

The values of info queries have the kinds `uint32`, `int32`, `uint64`, `string` and `K[3]`, too; an `Info` says which. A
function whose last argument is `propName` answers `info:X`: a value whose kind the `Info` of that enumeration gives.

Numbers, summaries, results and rules restate Unified Runtime (`scripts/core/*.yml` and its parameter validation, commit
578c2a84 of 2026-08-22).
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
    """An argument in Python."""

    name: str
    """UR's name of the parameter. For an array and its count, it is the array's name."""
    kind: str

    @property
    def optional(self) -> bool:
        return self.kind.endswith("?")

    @property
    def base_kind(self) -> str:
        """The kind without `?`."""
        return self.kind.removesuffix("?")


class Error(NamedTuple):
    """A result that UR documents for a function."""

    result: str
    """Name of a `Result`."""
    condition: str
    """When the result occurs. Empty if UR states no condition."""


class Check(NamedTuple):
    """A rule that can be decided from the arguments alone."""

    result: str
    """Name of a `Result`, the answer if the condition holds."""
    condition: str
    """A Python expression over the arguments' names, `invalid_bits` and the classes of `_enums`. Its value counts as
    true or false. The checks before it have passed.
    """
    origin: Literal["layer", "documented", "adapter"] = "layer"
    """`layer`: UR's parameter validation makes the check. `documented`: UR documents the check, but leaves it to the
    adapter. `adapter`: the check is undocumented, but the Level Zero adapter makes it, and UR's own tests require it.
    """


class Touched(NamedTuple):
    """Memory that a command uses."""

    pointer: str
    """The argument with the address."""
    nbytes: str
    """The largest number of bytes: an argument, or the product of two."""
    use: Literal["hints", "reads", "writes"]
    """Hints concern USM memory only."""


@dataclass(frozen=True)
class Function:
    """One function of `xpushare.ur`."""

    name: str
    function_id: int
    """UR's number of the function (`ur_function_t`)."""
    summary: str
    notes: str
    args: tuple[Arg, ...]
    unchecked: frozenset[str]
    """Mandatory parameters of C, including outputs, that UR does not compare with null."""
    returns: str
    """Kind of the result, or `None`."""
    errors: tuple[Error, ...]
    """The results that UR documents, in the order of their checks: those that `checks` decide, then the others, then
    `UNIVERSAL_ERRORS`.
    """
    checks: tuple[Check, ...]
    """The checks in the order of UR's parameter validation: pointers, handles, enumerations and flags, the rest."""
    operations: tuple[Operation, ...]
    """The operations of `core` that do the work."""
    results: Mapping[Result, Result]
    """The function's results for the general errors of `core`."""
    handles: tuple[type[XpuShareError], ...]
    """The errors of its operations for which the function returns a value."""
    makes: str
    """The kind of the object that a successful call makes, or takes a reference to. The caller has to give it back.
    Several kinds are joined with `+`.
    """
    ends: str
    """The kind of the object that the call gives back."""
    touches: tuple[Touched, ...]
    """The memory that a command uses."""
    needs: Aspect | None
    """What a device must have to carry the command out."""
    python: str
    """The same call, written with the classes of `xpushare.objects`. Empty if Python programs do not need such a call:
    Python counts references itself.
    """
    body: Callable[..., Any]

    @property
    def made(self) -> tuple[str, ...]:
        """The kinds of objects in `makes`, as a tuple."""
        return tuple(self.makes.split("+")) if self.makes else ()

    def result_of(self, result: Result) -> Result:
        """Return the result code of the function for an error of `core`. `result` is the general code of that error."""
        return self.results.get(result, result)


FUNCTIONS: Final[dict[str, Function]] = {}

UNIVERSAL_ERRORS: Final[tuple[Error, ...]] = (
    Error("ERROR_UNINITIALIZED", ""),
    Error("ERROR_DEVICE_LOST", ""),
    Error("ERROR_ADAPTER_SPECIFIC", ""),
)
"""The results that every function may have."""

UNSUPPORTED_QUERY: Final = ("UNSUPPORTED_ENUMERATION", "the adapter does not support `propName`")

# --- info queries ---------------------------------------------------------------------------------


class Info:
    """The queries of one enumeration: the kind of the value of each query, and the function that answers it."""

    def __init__(
        self,
        enumeration: type[IntEnum],
        kinds: Mapping[str, str],
        answers: Mapping[Any, Callable[[Any], Any]] = MappingProxyType({}),
        optional: str = "",
        changing: str = "",
    ) -> None:
        """Declare the queries. `kinds` maps a kind of values to the names of the queries that return this kind.
        `answers` maps a query to the function that answers it for an object. `optional` are the names of the queries
        that UR lets an adapter leave unanswered. `changing` are the names of the queries whose answer may change.
        """
        self.enumeration = enumeration
        self.kinds: Final = {name: kind for kind, names in kinds.items() for name in names.split()}
        self.optional: Final = frozenset(optional.split())
        self.lasting: Final = frozenset(each for each in answers if each.name not in changing.split())
        """The queries that always have the same answer."""
        self._answers = answers
        INFOS[enumeration.__name__] = self

    def answer(self, asked: Any, about: Any) -> Any:
        """Return the value of a query for an object, or raise `ERROR_UNSUPPORTED_ENUMERATION`."""
        found = self._answers.get(asked)
        if found is None:
            raise URError(f"{about!r} does not answer {asked!r}", result=Result.ERROR_UNSUPPORTED_ENUMERATION)
        return found(about)


INFOS: Final[dict[str, Info]] = {}
"""The queries, by the name of their enumeration."""

# --- rules ----------------------------------------------------------------------------------------

Rule = tuple[Check, str]
"""A check and its condition in words."""


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
    """Return the kind of argument or result for an annotation in a body's signature."""
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
    """Declare that the decorated function is the body of UR's function with the same name.

    - `errors`: the results that no check decides, without `ERROR_`, and when they occur
    - `rules`: the checks after those that follow from the kinds
    - `unchecked`: mandatory parameters that UR does not compare with null
    - `operations`: the names of the operations of `core` that do the work
    - `invalid`, `unsupported`: the results if `core` raises `InvalidArgumentError` or `FeatureNotSupportedError`
    - `handles`, `makes`, `ends`, `touches`, `needs`, `python`: as in `Function`

    The first paragraph of the body's docstring is the summary. The other paragraphs are the notes.
    """

    def declare(body: F) -> F:
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
    """Return the functions of `xpushare.ur` that call an operation of `core`."""
    return tuple(each.name for each in FUNCTIONS.values() if operation in each.operations)
