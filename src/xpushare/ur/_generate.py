"""Writes the files that are generated from the declarations: the stub for type checkers, the pages about functions,
operations and aspects, and the C tables of the library that Unified Runtime's loader loads.

    python -m xpushare.ur._generate            writes all files that are out of date
    python -m xpushare.ur._generate --check    exits with status 1 if a file is out of date
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import sys
from enum import IntEnum, IntFlag
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    ForkError,
    InvalidArgumentError,
    OutOfMemoryError,
    XpuShareError,
)
from xpushare.common.result import Result
from xpushare.core.declare import Operation
from xpushare.core.layers import operations
from xpushare.ur import _enums, _structs
from xpushare.ur._derived import UNSUPPORTED, annotation, documentation, meaning, result_annotation
from xpushare.ur._functions import FUNCTIONS, INFOS
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import Function, functions_of
from xpushare.ur.loader._tables import tables

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EXAMPLES", "aspects_page", "main", "operations_page", "reference", "stub", "targets"]

# --- the examples of the pages ----------------------------------------------------------------------------------------

_CONTEXT: Final = """\
from xpushare import ur

platform = next(
    ur.urPlatformGet(each)[0]
    for each in ur.urAdapterGet()
    if ur.urAdapterGetInfo(each, ur.AdapterInfo.BACKEND) == ur.Backend.NATIVE_CPU
)
device = ur.urDeviceGet(platform, ur.DeviceType.ALL)[0]
context = ur.urContextCreate([device], None)

"""

_DEVICES: Final = """\
from xpushare import ur

for adapter in ur.urAdapterGet():
    for platform in ur.urPlatformGet(adapter):
        backend = ur.urPlatformGetInfo(platform, ur.PlatformInfo.BACKEND)
        if backend == ur.Backend.NATIVE_CPU:
            for device in ur.urDeviceGet(platform, ur.DeviceType.ALL):
                kind = ur.urDeviceGetInfo(device, ur.DeviceInfo.TYPE)
                print(backend.name, kind.name)
"""

_CONTEXTS: Final = """\
print(ur.urContextGetInfo(context, ur.ContextInfo.NUM_DEVICES))
print(ur.urContextGetInfo(context, ur.ContextInfo.DEVICES) == [device])
ur.urContextRelease(context)
"""

_QUEUES: Final = """\
queue = ur.urQueueCreate(context, device, None)
event = ur.urEnqueueEventsWait(queue, None)  # a command that does nothing
ur.urQueueFinish(queue)
print(ur.urQueueGetInfo(queue, ur.QueueInfo.EMPTY))
ur.urEventRelease(event)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_COMMANDS: Final = """\
queue = ur.urQueueCreate(context, device, None)
a = ur.urUSMHostAlloc(context, None, None, 4)
b = ur.urUSMHostAlloc(context, None, None, 4)

filled = ur.urEnqueueUSMFill(queue, a, b"\\x07", 4, None)
copied = ur.urEnqueueUSMMemcpy(queue, False, b, a, 4, [filled])
ur.urEventWait([copied])
print(ctypes.string_at(b, 4))

for event in (filled, copied):
    ur.urEventRelease(event)
for address in (a, b):
    ur.urUSMFree(context, address)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_EVENTS: Final = """\
queue = ur.urQueueCreate(context, device, None)
event = ur.urEnqueueEventsWait(queue, None)
ur.urEventWait([event])
status = ur.urEventGetInfo(event, ur.EventInfo.COMMAND_EXECUTION_STATUS)
command = ur.urEventGetInfo(event, ur.EventInfo.COMMAND_TYPE)
print(command.name, status.name)
ur.urEventRelease(event)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_MEMORY: Final = """\
pool = ur.urUSMPoolCreate(context, ur.USMPoolDesc())
address = ur.urUSMDeviceAlloc(context, device, None, pool, 4096)
kind = ur.urUSMGetMemAllocInfo(context, address + 100, ur.USMAllocInfo.TYPE)
size = ur.urUSMGetMemAllocInfo(context, address + 100, ur.USMAllocInfo.SIZE)
print(kind.name, size)
ur.urUSMFree(context, address)
ur.urUSMPoolRelease(pool)
ur.urContextRelease(context)
"""

_BUFFERS: Final = """\
queue = ur.urQueueCreate(context, device, None)
buffer = ur.urMemBufferCreate(context, ur.MemFlags.READ_WRITE, 8, None)
filled = ur.urEnqueueMemBufferFill(queue, buffer, b"ab", 0, 8, None)

read = ur.MapFlags.READ
mapped, address = ur.urEnqueueMemBufferMap(queue, buffer, True, read, 2, 4, [filled])
print(ctypes.string_at(address, 4))
unmapped = ur.urEnqueueMemUnmap(queue, buffer, address, [mapped])
ur.urEventWait([unmapped])

for event in (filled, mapped, unmapped):
    ur.urEventRelease(event)
ur.urMemRelease(buffer)
ur.urQueueRelease(queue)
ur.urContextRelease(context)
"""

_VIRTUAL_MEMORY: Final = """\
smallest = ur.VirtualMemGranularityInfo.MINIMUM
size = ur.urVirtualMemGranularityGetInfo(context, device, 0, smallest)
start = ur.urVirtualMemReserve(context, None, 2 * size)
physical = ur.urPhysicalMemCreate(context, device, size, None)

at, access = start + size, ur.VirtualMemAccessFlags.READ_WRITE
ur.urVirtualMemMap(context, at, size, physical, 0, access)
found = ur.urVirtualMemGetInfo(context, at, size, ur.VirtualMemInfo.ACCESS_MODE)
print(found.name)

ur.urVirtualMemUnmap(context, at, size)
ur.urPhysicalMemRelease(physical)
ur.urVirtualMemFree(context, start, 2 * size)
ur.urContextRelease(context)
"""

_NATIVE_HANDLES: Final = """\
from xpushare import ur

for adapter in ur.urAdapterGet():
    for platform in ur.urPlatformGet(adapter):
        for device in ur.urDeviceGet(platform, ur.DeviceType.ALL):
            try:
                handle = ur.urDeviceGetNativeHandle(device)
            except ur.URError as error:
                assert error.result == ur.Result.ERROR_UNSUPPORTED_FEATURE
                continue  # the host has no driver, so it has no handle
            same = ur.urDeviceCreateWithNativeHandle(handle, adapter, None)
            assert same == device
            ur.urDeviceRelease(same)
"""

EXAMPLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "devices": (_DEVICES, "NATIVE_CPU CPU"),
        "contexts": (_CONTEXT + _CONTEXTS, "1\nTrue"),
        "queues": (_CONTEXT + _QUEUES, "True"),
        "commands": ("import ctypes\n\n" + _CONTEXT + _COMMANDS, "b'\\x07\\x07\\x07\\x07'"),
        "events": (_CONTEXT + _EVENTS, "EVENTS_WAIT COMPLETE"),
        "memory": (_CONTEXT + _MEMORY, "DEVICE 4096"),
        "buffers": ("import ctypes\n\n" + _CONTEXT + _BUFFERS, "b'abab'"),
        "virtual-memory": (_CONTEXT + _VIRTUAL_MEMORY, "READ_WRITE"),
        "native-handles": (_NATIVE_HANDLES, ""),
    }
)
"""For the name of a page, its program and what the program prints."""


ENUMERATIONS: Final = sorted(set(_enums.__all__) - {"INVALID_BITS", "invalid_bits"})
STRUCTS: Final = sorted(set(_structs.__all__) - {"BY_VALUE", "FIELD_KINDS", "STRUCTURE_TYPES"})
OBJECTS: Final = sorted(cls.__name__ for cls in HANDLES.values())

NOTICE: Final = (
    "<!-- Made by `python -m xpushare.ur._generate` from `src/xpushare/ur/_functions`: not to be edited. -->"
)

INTRODUCTION: Final = f"""\
# `xpushare.ur`: reference

{NOTICE}

`xpushare.ur` provides functions of Unified Runtime (UR), under UR's names. Each function has a section on one of the
pages below. [Another page](unsupported.md) lists the functions that are not supported.

A function of `xpushare.ur` differs from the C function in these ways:

- The arguments are the inputs of the C function, in the same order. An array and its count are one sequence. The size
  arguments of queries are left out.
- Null is `None`. A struct is a dataclass. An enumeration is an `IntEnum`, or any int.
- The function returns the outputs of the C function.
- A failure raises `ur.URError`. Its `.result` is the result code, a `ur.Result`.

[Structs](structs.md) and [enumerations](enumerations.md) have pages of their own. An address is an `int`, and 0 and
`None` mean null. A handle is an object of a class such as `ur.Context`.

## A program

Two processes share memory of the host. The second one doubles the number in it. (Other pages have shorter examples.
None of them releases the adapters and devices, which live until the process exits.)

```python
import ctypes
import multiprocessing

from xpushare import ur


def devices() -> list[ur.Device]:
    for adapter in ur.urAdapterGet():
        backend = ur.urAdapterGetInfo(adapter, ur.AdapterInfo.BACKEND)
        if backend == ur.Backend.NATIVE_CPU:
            return ur.urDeviceGet(ur.urPlatformGet(adapter)[0], ur.DeviceType.ALL)
    return []


def double(handle: bytes) -> None:
    context = ur.urContextCreate(devices(), None)
    address = ur.urIPCOpenMemHandleExp(context, devices()[0], handle)
    number = ctypes.c_int.from_address(address)
    number.value *= 2
    ur.urIPCCloseMemHandleExp(context, address)
    ur.urContextRelease(context)


if __name__ == "__main__":
    context = ur.urContextCreate(devices(), None)
    address = ur.urUSMDeviceAlloc(context, devices()[0], None, None, 4096)
    number = ctypes.c_int.from_address(address)
    number.value = 21
    handle = ur.urIPCGetMemHandleExp(context, address)
    process = multiprocessing.get_context("spawn").Process(target=double, args=(handle,))
    process.start()
    process.join()
    print(number.value)
    ur.urIPCPutMemHandleExp(context, handle)
    ur.urUSMFree(context, address)
    try:
        ur.urUSMFree(context, address)
    except ur.URError as error:
        print(repr(error.result))
    ur.urContextRelease(context)
```

```text
42
<Result.ERROR_INVALID_MEM_OBJECT: 11>
```
"""

RESULTS: Final = """\
## Results

The table of each function lists its results in the order of the checks, and then the results that errors of the
package become. For "other results", UR states no condition. Some conditions have a mark:

- "(documented)": UR documents the check, but its validation does not make it.
- "(as the Level Zero adapter)": UR does not document the check, but its Level Zero adapter makes it and its tests
  require it.

In the tables of properties, "(optional)" means that an adapter may leave the property out.

These results are common to all functions:

| result | when |
|---|---|
| `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`, `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, \
`ERROR_INVALID_MEM_OBJECT`, `ERROR_INVALID_PLATFORM` | a handle is of another kind, or its last reference was released |
| `ERROR_INVALID_VALUE` | the same for the handle of an adapter |
| `ERROR_INVALID_EVENT_WAIT_LIST` | the same for an event in a wait list |
| `ERROR_INVALID_DEVICE` | a device is not in the context |
| `ERROR_INVALID_ARGUMENT` | no C program could pass a value of this type |
| `ERROR_INVALID_ENUMERATION` | the same for an enumeration or flags |
| `ERROR_INVALID_VALUE` | a number does not fit into the C type |
| `ERROR_INVALID_MEM_OBJECT` | memory at an unknown address is to be read, written or freed |
| `ERROR_INVALID_ARGUMENT` | memory at an unknown address is to be exported or closed |
| `ERROR_INVALID_VALUE` | an address is unknown, in all other cases |
| `ERROR_INVALID_VALUE` | an IPC handle is invalid or has expired |
| `ERROR_INVALID_OPERATION` | an object of the parent process is used in a forked child |
| `ERROR_ADAPTER_SPECIFIC` | the driver failed; `.native` is the driver's error number |
| `ERROR_UNSUPPORTED_ENUMERATION` | a query exists, but is not answered for this device or at all |
"""

GROUPS: Final = {
    "devices": ("adapters, platforms and devices", ("device",)),
    "contexts": ("contexts", ("context",)),
    "queues": ("queues", ("queue",)),
    "commands": ("commands in queues", ("enqueue",)),
    "events": ("events", ("event",)),
    "memory": ("USM memory", ("usm",)),
    "buffers": ("buffers", ("buffer",)),
    "virtual-memory": ("physical and virtual memory", ("virtual_mem",)),
    "ipc": ("sharing with other processes", ("ipc",)),
    "native-handles": ("handles of the driver", ("native",)),
}
"""The pages of the reference. Maps a page's file name to its title, and to the modules of `_functions` whose functions
it describes.
"""

_NAMES: Final = {"physical_mem": "physical memory", "mem": "buffer", "usm_pool": "pool"}
"""The kinds of objects whose names on the pages differ from their names in the declarations."""

# --- the stub ---------------------------------------------------------------------------------------


def _reimports(module: str, names: list[str]) -> list[str]:
    return [f"from xpushare.{module} import {name} as {name}" for name in names]


def _definition(function: Function, arguments: str, returns: str) -> list[str]:
    head = f"def {function.name}({arguments}) -> {returns}:"
    lines = [head] if len(head) <= 116 else [f"def {function.name}(", f"    {arguments},", f") -> {returns}:"]
    text = documentation(function).replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return [*lines, f'    """{text}', '    """']


def _wrap(names: list[str]) -> list[str]:
    """Format names as lines of a stub, separated by commas."""
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > 105:
            lines.append("")
        lines[-1] += f"{name}, "
    return [f"        {line.rstrip()}" for line in lines]


def _result_of_query(info: str, member: str) -> str:
    kind = INFOS[info].kinds[member]
    text = result_annotation(kind)
    # UR's null: no parent device, no command yet, an allocation without a pool.
    return f"{text} | None" if kind.startswith("handle:") and member in _NULLABLE and text != "None" else text


_NULLABLE: Final = {"PARENT_DEVICE", "COMPOSITE_DEVICE", "COMMAND_QUEUE", "POOL"}


def _function(function: Function) -> list[str]:
    arguments = ", ".join(f"{arg.name}: {annotation(arg.kind)}" for arg in function.args)
    if not function.returns.startswith("info:"):
        return _definition(function, arguments, result_annotation(function.returns))
    info = function.returns.removeprefix("info:")
    by_type: dict[str, list[str]] = {}
    for member in INFOS[info].kinds:
        by_type.setdefault(_result_of_query(info, member), []).append(f"{info}.{member}")
    if len(by_type) == 1:
        return _definition(function, arguments, next(iter(by_type)))
    others = ", ".join(f"{arg.name}: {annotation(arg.kind)}" for arg in function.args[:-1])
    lines: list[str] = []
    for returns, members in by_type.items():
        inline = f"    propName: Literal[{', '.join(members)}],"
        asked = [inline] if len(inline) <= 116 else ["    propName: Literal[", *_wrap(members), "    ],"]
        lines += ["@overload", f"def {function.name}(", f"    {others},", *asked, f") -> {returns}: ..."]
    return [*lines, "@overload", *_definition(function, f"{others}, propName: int", "Any")]


def stub() -> str:
    """Return the text of `__init__.pyi`."""
    lines = [
        "# Made by `python -m xpushare.ur._generate` from `_functions`: not to be edited.",
        "# ruff: noqa: E501",
        "# fmt: off",
        "from collections.abc import Callable, Sequence",
        "from typing import Any, Literal, NoReturn, overload",
        "",
        *_reimports("common.result", ["Result"]),
        *_reimports("ur._enums", ENUMERATIONS),
        *_reimports("ur._error", ["URError"]),
        *_reimports("ur._objects", OBJECTS),
        *_reimports("ur._structs", STRUCTS),
    ]
    for name in sorted(FUNCTIONS):
        lines += ["", *_function(FUNCTIONS[name])]
    lines += ["", *(f"def {name}(*arguments: object) -> NoReturn: ..." for name in UNSUPPORTED)]
    return "\n".join(lines) + "\n"


# --- the reference pages ----------------------------------------------------------------------------


def _anchor(operation: Operation) -> str:
    """Return the anchor of an operation's section, as MkDocs derives it from the heading."""
    return re.sub(r"[^\w-]", "", operation.name).lower()


def _of_core(function: Function) -> list[str]:
    """Return rows for the table of results that show which result code each of the package's errors becomes. The
    errors are those that the function's operations of `core` raise, and those that the function itself converts.
    """
    raised = [error for each in function.operations for error in each.raises if issubclass(error, XpuShareError)]
    own = [each for each in (InvalidArgumentError, FeatureNotSupportedError) if each.default_result in function.results]
    by_result: dict[str, list[str]] = {}
    for each in dict.fromkeys([*raised, *own]):
        if each not in function.handles:
            by_result.setdefault(function.result_of(each.default_result).name, []).append(f"`{each.__name__}`")
    return [f"| `{result}` | the package raises {' or '.join(errors)} |" for result, errors in by_result.items()]


def _given_back(function: Function) -> list[str]:
    """Return sentences about the objects that the caller has to release after a successful call, and about the object
    that the call itself releases.
    """
    lines = [f"Releases: {_NAMES.get(function.ends, function.ends)}."] if function.ends else []
    for made in function.made:
        name = _NAMES.get(made, made)
        by = " or ".join(f"`{each.name}`" for each in FUNCTIONS.values() if each.ends == made)
        lines.append(f"The caller has to release: {name}, with {by}." if by else f"Adds a reference: {name}.")
    return lines


def _section(function: Function) -> list[str]:
    signature = ", ".join(arg.name for arg in function.args)
    lines = [f"## `{function.name}`", "", f"`{function.name}({signature})` → `{result_annotation(function.returns)}`"]
    lines += ["", function.summary]
    if function.notes:
        lines += ["", function.notes]
    if function.args:
        lines += ["", "| argument | type | meaning |", "|---|---|---|"]
        lines += [
            f"| `{arg.name}` | {_type(arg.base_kind)}{' or `None`' if arg.optional else ''} "
            f"| {meaning(function.name, arg.name)} |"
            for arg in function.args
        ]
    rows: list[str] = []
    others: list[str] = []
    decided = len(function.checks)
    origins = {"layer": "", "documented": " (documented)", "adapter": " (as the Level Zero adapter)"}
    for number, error in enumerate(function.errors):
        origin = origins[function.checks[number].origin] if number < decided else ""
        if error.condition:
            rows.append(f"| `{error.result}` | {error.condition}{origin} |")
        else:
            others.append(f"`{error.result}`")
    rows += _of_core(function)
    if rows:
        lines += ["", "| result | when |", "|---|---|", *rows]
    if others := [each for each in dict.fromkeys(others) if not any(row.startswith(f"| {each} |") for row in rows)]:
        lines += ["", f"{'Other results' if rows else 'Results'}: {', '.join(others)}"]
    for line in _given_back(function):
        lines += ["", line]
    if function.python:
        lines += ["", f"Equivalent in `xpushare`: {function.python}"]
    if function.operations:
        links = (f"[`{each.name}`](../reference/operations.md#{_anchor(each)})" for each in function.operations)
        lines += ["", f"Operation: {', '.join(links)}"]
    return lines


def _type(kind: str) -> str:
    """Return the type of an argument or a field for a table, with a link to the page of its struct or enumeration."""
    family, _, name = kind.partition(":")
    if family in ("struct", "value"):
        return f"[`{name}`](structs.md#{name.lower()})"
    if family in ("enum", "flags"):
        return f"[`{name}`](enumerations.md#{name.lower()}) or `int`"
    if family == "pointer":
        return "`int`, an address"
    return " or ".join(f"`{each}`" for each in annotation(kind).split(" | "))


def _page(function: Function) -> str:
    """Return the name of the page that describes a function, without its suffix."""
    module = function.body.__module__.rpartition(".")[2]
    return next(page for page, (_title, modules) in GROUPS.items() if module in modules)


def _link(name: str, folder: str) -> str:
    """Return a link to the section of the function with that name. `folder` leads to the pages of the reference."""
    return f"[`{name}`]({folder}{_page(FUNCTIONS[name])}.md#{name.lower()})"


def _functions_of_page(page: str) -> list[Function]:
    """Return the functions that a page describes, in the order of their declarations."""
    return [
        each for module in GROUPS[page][1] for each in FUNCTIONS.values() if each.body.__module__.endswith(f".{module}")
    ]


def _queries(functions: list[Function]) -> list[str]:
    """Return the tables of the properties that these functions return."""
    lines: list[str] = []
    for info in sorted({each.returns.removeprefix("info:") for each in functions if each.returns.startswith("info:")}):
        declared = INFOS[info]
        asking = ", ".join(f"`{each.name}`" for each in functions if each.returns == f"info:{info}")
        lines += [f"### `{info}`", "", f"The properties that {asking} can return:", ""]
        lines += ["| property | number | type |", "|---|---|---|"]
        numbers = declared.enumeration.__members__
        for member in declared.kinds:
            mark = " (optional)" if member in declared.optional else ""
            answer = _result_of_query(info, member).replace("|", "\\|")
            lines.append(f"| `{member}` | {int(numbers[member]):#x} | `{answer}`{mark} |")
        lines.append("")
    return ["## Queries", "", *lines] if lines else []


def _example(page: str) -> list[str]:
    """Return the example program of a page, and what it prints."""
    if page == "ipc":
        return ["[The overview](index.md#a-program) has a program of two processes that share memory."]
    code, printed = EXAMPLES[page]
    output = ["", "```text", printed, "```"] if printed else []
    return ["## Example", "", "```python", code.rstrip(), "```", *output]


def _page_of_group(page: str) -> str:
    """Return the text of a page about one group of functions."""
    title, _modules = GROUPS[page]
    functions = _functions_of_page(page)
    lines = [f"# `xpushare.ur`: {title}", "", NOTICE, ""]
    lines += [f"Unified Runtime's functions for {title}. [The overview](index.md) explains arguments and results.", ""]
    lines += [*_example(page), ""]
    for function in functions:
        lines += [*_section(function), ""]
    return "\n".join([*lines, *_queries(functions)])


def _index() -> str:
    """Return the text of the reference's first page."""
    lines = [INTRODUCTION, "## Functions", "", "| page | functions |", "|---|---|"]
    for page, (title, _modules) in GROUPS.items():
        links = ", ".join(_link(each.name, "") for each in _functions_of_page(page))
        lines.append(f"| [{title[0].upper()}{title[1:]}]({page}.md) | {links} |")
    return "\n".join([*lines, "", RESULTS])


def _structs_page() -> str:
    """Return the text of the page that describes the structs."""
    lines = ["# `xpushare.ur`: structs", "", NOTICE.replace("_functions", "_structs.py"), ""]
    lines += ["Unified Runtime's structs are dataclasses of `xpushare.ur`. `stype` and `pNext` are left out.", ""]
    meanings = _field_meanings()
    for name in STRUCTS:
        cls = getattr(_structs, name)
        lines += [f"## `{name}`", "", " ".join((inspect.getdoc(cls) or "").split()), ""]
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        kinds = _structs.FIELD_KINDS.get(name, {})
        for field in dataclasses.fields(cls):
            kind = kinds.get(field.name, "bool" if field.type in (bool, "bool") else "size")
            text = meanings.get((name, field.name), "")
            lines.append(f"| `{field.name}` | {_type(kind)} | `{field.default!r}` | {text} |")
        lines.append("")
    return "\n".join(lines)


def _field_meanings() -> dict[tuple[str, str], str]:
    """Return the docstrings of the fields of structs, by the names of the struct and the field."""
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(_structs)).body:
        if isinstance(node, ast.ClassDef):
            for field, text in itertools.pairwise(node.body):
                if (
                    isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
                    and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
                ):  # fmt: skip
                    found[node.name, field.target.id] = " ".join(str(text.value.value).split())
    return found


def _enumerations_page() -> str:
    """Return the text of the page that lists the enumerations with their members."""
    lines = ["# `xpushare.ur`: enumerations", "", NOTICE.replace("_functions", "_enums.py"), ""]
    lines += ["Unified Runtime's enumerations are classes of `xpushare.ur`. Functions accept any `int`, too.", ""]
    for name in sorted([*ENUMERATIONS, "Result"]):
        cls: type[IntEnum | IntFlag] = Result if name == "Result" else getattr(_enums, name)
        lines += [f"## `{name}`", "", " ".join((inspect.getdoc(cls) or "").split()), ""]
        lines += ["| member | number |", "|---|---|"]
        lines += [f"| `{member}` | {int(number):#x} |" for member, number in cls.__members__.items()]
        lines.append("")
    return "\n".join(lines)


def _unsupported() -> str:
    """Return the text of the page that lists the functions of Unified Runtime that are not provided."""
    lines = ["# `xpushare.ur`: unsupported functions", "", NOTICE, ""]
    lines += ["These functions of Unified Runtime always fail with `ERROR_UNSUPPORTED_FEATURE`:", ""]
    return "\n".join([*lines, *(f"- `{name}`" for name in UNSUPPORTED), ""])


def reference() -> dict[str, str]:
    """Return the pages of the reference in `docs/ur`, as a dict from file name to text."""
    pages = {f"{page}.md": _page_of_group(page) for page in GROUPS}
    return {
        "index.md": _index(), **pages, "structs.md": _structs_page(), "enumerations.md": _enumerations_page(),
        "unsupported.md": _unsupported(),
    }  # fmt: skip


# --- the pages on operations and aspects ------------------------------------------------------------

OF_EVERY_CALL: Final = {InvalidArgumentError, ForkError, OutOfMemoryError, DeviceError}
OPERATIONS_INTRODUCTION: Final = """\
# Operations

<!-- Made by `python -m xpushare.ur._generate` from the declarations in `src/xpushare/core`: not to be edited. -->

This page lists the operations on memory, physical memory, events, queues and handles, each of them once. `xpushare`,
`xpushare.ipc` and `xpushare.ur` call these operations. Arrays, names, channels and locks are built from them and have
pages of their own. [Layers](../layers.md) wrap the operations, and [`xpushare trace`](../tracing.md) shows them by
these names. The [conformance suite](../conformance.md) tests the rules of sharing. Any of them may also raise the
[errors of every call](errors.md#errors-of-every-call).
"""

ASPECTS_INTRODUCTION: Final = """\
# Aspects

<!-- Made by `python -m xpushare.ur._generate` from `src/xpushare/common/aspects.py`: not to be edited. -->

Aspects are what `device.has`, `device.support` and `xpushare info` say about a device. The package asks the driver for
each, or tries it, and never assumes it; `support` says how it knows. The [conformance suite](../conformance.md) lists
which rules of the contract need which aspect.

| aspect | a device that has it | `ur.DeviceInfo` |
|---|---|---|
"""


def operations_page() -> str:
    """Return the text of `docs/reference/operations.md`."""
    lines = [OPERATIONS_INTRODUCTION]
    for each in sorted(operations(), key=lambda operation: operation.name):
        lines += [f"## `{each.name}`", "", " ".join(each.doc.split()), ""]
        if raised := [f"`{error.__name__}`" for error in each.raises if error not in OF_EVERY_CALL]:
            lines += [f"- Raises: {', '.join(raised)}"]
        if named := functions_of(each):
            lines += [f"- Unified Runtime: {', '.join(_link(name, '../ur/') for name in named)}"]
        if each.rules:
            rules = ", ".join(f"3.{rule}" for rule in each.rules)
            lines += [f"- [Rules of sharing](../conformance.md): {rules}"]
        if each.makes or each.ends:
            what = f"makes: {each.makes}" if each.makes else f"ends: {each.ends}"
            lines += [f"- For [leak checking](../layers.md), it {what}"]
        lines += [""]
    return "\n".join(lines)


def aspects_page() -> str:
    """Return the text of `docs/reference/aspects.md`."""
    rows = (f"| `{each}` | {each.doc} | {f'`{each.query}`' if each.query else ''} |" for each in Aspect)
    return ASPECTS_INTRODUCTION + "\n".join(rows) + "\n"


def targets() -> dict[Path, str]:
    """Return the contents of all generated files, by their paths in a checkout."""
    here = Path(__file__).resolve()
    checkout = here.parents[3]
    docs = checkout / "docs"
    return {
        here.with_name("__init__.pyi"): stub(),
        **{docs / "ur" / name: text for name, text in reference().items()},
        docs / "reference" / "operations.md": operations_page(),
        docs / "reference" / "aspects.md": aspects_page(),
        checkout / "src" / "native" / "ur_adapter" / "functions.h": tables(),
    }


def main(arguments: list[str]) -> int:
    stale = [path for path, text in targets().items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is stale: run python -m xpushare.ur._generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(targets()[path], "utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
