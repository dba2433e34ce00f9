"""Writes what is generated from the declarations: the stub for type checkers and the reference page.

python -m xpushare.ur._generate            writes __init__.pyi here and docs/ur-reference.md in the checkout
python -m xpushare.ur._generate --check    exit status 1 when either is stale
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from xpushare._errors import DeviceError, FeatureNotSupportedError, InvalidArgumentError, XpuShareError
from xpushare._result import Result
from xpushare.core import event, memory, physical, queue
from xpushare.core.declare import OPERATIONS
from xpushare.ur import _enums, _structs
from xpushare.ur._derived import HANDLES, annotation, documentation, result_annotation
from xpushare.ur._implementation import RESULTS
from xpushare.ur._spec import FUNCTIONS, INFO_TYPES, OPTIONAL_QUERIES, Function

__all__ = ["reference", "stub", "targets"]

_DECLARING: Final = (event, memory, physical, queue)  # importing them declares their operations

ENUMERATIONS: Final = sorted(set(_enums.__all__) - {"INVALID_BITS", "invalid_bits"})
STRUCTS: Final = sorted(set(_structs.__all__) - {"FIELD_KINDS", "STRUCTURE_TYPES"})
OBJECTS: Final = sorted(cls.__name__ for cls in HANDLES.values())

PYTHON: Final = {
    "urAdapterGet": "`xs.devices()`",
    "urAdapterGetInfo": "`device.backend`",
    "urPlatformGet": "`xs.devices()`",
    "urPlatformGetInfo": "`device.backend`",
    "urDeviceGet": "`xs.devices(selector)`",
    "urDeviceGetInfo": "`device.name`, `device.uuid`, `device.support(aspect)` …",
    "urContextCreate": "`xs.Context(devices)`",
    "urUSMDeviceAlloc": "`xs.malloc_device(nbytes, device, context=…)`",
    "urUSMHostAlloc": "`xs.malloc_host(nbytes, device, context=…)`",
    "urUSMSharedAlloc": "`xs.malloc_shared(nbytes, device, context=…)`",
    "urUSMFree": "`memory.close()`",
    "urUSMGetMemAllocInfo": "`memory.ptr`, `memory.nbytes`, `memory.device`",
    "urQueueCreate": "`xs.Queue(device, context=…)`",
    "urQueueRelease": "`queue.close()`",
    "urQueueFinish": "`queue.synchronize()`",
    "urEnqueueUSMMemcpy": "`queue.copy(dst, src, nbytes)`",
    "urEnqueueUSMFill": "`queue.fill(dst, pattern, nbytes)`",
    "urVirtualMemGranularityGetInfo": "`device.memory_granularity(recommended)`",
    "urVirtualMemReserve": "`xs.VirtualRange(nbytes, device, context=…, address=…)`",
    "urVirtualMemFree": "`range.close()`",
    "urVirtualMemMap": "`range.map(physical, at, offset=…, nbytes=…, access=…)`",
    "urVirtualMemUnmap": "`range.unmap(at, nbytes)`",
    "urVirtualMemSetAccess": "`range.set_access(at, nbytes, access)`",
    "urVirtualMemGetInfo": "`range.access(at)`",
    "urPhysicalMemCreate": "`xs.PhysicalMemory(nbytes, device, context=…, enable_ipc=…)`",
    "urPhysicalMemRelease": "`physical.close()`",
    "urPhysicalMemGetInfo": "`physical.nbytes`, `physical.device`, `physical.ipc_enabled`",
    "urEventCreateExp": "`xs.Event(device, context=…, enable_ipc=…, enable_profiling=…)`",
    "urEventGetInfo": "`event.done`",
    "urEventWait": "`event.wait()`",
    "urEventRelease": "`event.close()`",
    "urEnqueueEventsWait": "`queue.wait(event)`",
    "urEnqueueEventsWaitWithBarrier": "`queue.wait(event)`",
    "urEnqueueEventsWaitWithBarrierExt": "`queue.signal(event)`",
    "urIPCGetMemHandleExp": "`xs.ipc.memory.get(memory)`",
    "urIPCPutMemHandleExp": "`xs.ipc.memory.put(handle)`",
    "urIPCOpenMemHandleExp": "`xs.ipc.memory.open(handle, device=…, context=…)`",
    "urIPCCloseMemHandleExp": "`xs.ipc.memory.close(memory)`",
    "urIPCGetPhysMemHandleExp": "`xs.ipc.physical_memory.get(physical)`",
    "urIPCPutPhysMemHandleExp": "`xs.ipc.physical_memory.put(handle)`",
    "urIPCOpenPhysMemHandleExp": "`xs.ipc.physical_memory.open(handle, device=…, context=…)`",
    "urIPCClosePhysMemHandleExp": "`physical.close()`",
    "urIPCGetEventHandleExp": "`xs.ipc.event.get(event)`",
    "urIPCPutEventHandleExp": "`xs.ipc.event.put(handle)`",
    "urIPCOpenEventHandleExp": "`xs.ipc.event.open(handle, context=…)`",
}
"""What one would write with the object face. The others have no use there: Python counts references."""

INTRODUCTION: Final = """\
# `xpushare.ur`: reference

<!-- Made by `python -m xpushare.ur._generate` from `src/xpushare/ur/_spec.py`: not to be edited. -->

The functions of Unified Runtime that this package has, under UR's names. Arguments are the C function's inputs in their
order: an array and its count are one sequence, null is `None`, a struct is a dataclass, an enumeration is an `IntEnum`
or any int, and the size arguments of queries fall away. Outputs are returned. A failure raises `ur.URError` with a
`ur.Result` in `.result`; the tables list the results in the order in which they are looked for.

Common to all functions:

- A handle of another kind, or one whose last reference was given up: `ERROR_INVALID_CONTEXT`, `ERROR_INVALID_DEVICE`,
  `ERROR_INVALID_QUEUE`, `ERROR_INVALID_EVENT`, `ERROR_INVALID_MEM_OBJECT`, `ERROR_INVALID_PLATFORM`;
  `ERROR_INVALID_VALUE` for an adapter. In a wait list: `ERROR_INVALID_EVENT_WAIT_LIST`.
- A device that is not in the context: `ERROR_INVALID_DEVICE`.
- A value of a type that no C program could pass: `ERROR_INVALID_ARGUMENT`, for enumerations and flags
  `ERROR_INVALID_ENUMERATION`. A number that does not fit the C type: `ERROR_INVALID_VALUE`.
- An address that lies in no memory of this process: `ERROR_INVALID_MEM_OBJECT` where memory is read, written or freed,
  `ERROR_INVALID_ARGUMENT` where it is exported or closed, `ERROR_INVALID_VALUE` elsewhere.
- A handle that is refused or has expired: `ERROR_INVALID_VALUE`. An object of the parent in a forked child:
  `ERROR_INVALID_OPERATION`. What the driver refuses: `ERROR_ADAPTER_SPECIFIC`, its number in `.native`.
- A query that is known but not answered, on this device or at all: `ERROR_UNSUPPORTED_ENUMERATION`.
"""

# --- the stub ---------------------------------------------------------------------------------------


def _reimports(module: str, names: list[str]) -> list[str]:
    return [f"from xpushare.{module} import {name} as {name}" for name in names]


def _definition(function: Function, arguments: str, returns: str) -> list[str]:
    head = f"def {function.name}({arguments}) -> {returns}:"
    lines = [head] if len(head) <= 116 else [f"def {function.name}(", f"    {arguments},", f") -> {returns}:"]
    text = documentation(function).replace("\n", "\n    ").replace("\n    \n", "\n\n")
    return [*lines, f'    """{text}', '    """']


def _wrap(names: list[str]) -> list[str]:
    """Names, comma-separated, on lines of a stub."""
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) > 105:
            lines.append("")
        lines[-1] += f"{name}, "
    return [f"        {line.rstrip()}" for line in lines]


def _result_of_query(info: str, member: str) -> str:
    kind = INFO_TYPES[info][member]
    text = result_annotation(kind)
    # UR's null: no parent device, no command yet, no device of host memory.
    return f"{text} | None" if kind.startswith("handle:") and member in _NULLABLE and text != "None" else text


_NULLABLE: Final = {"PARENT_DEVICE", "COMPOSITE_DEVICE", "COMMAND_QUEUE"}


def _function(function: Function) -> list[str]:
    arguments = ", ".join(f"{arg.name}: {annotation(arg.kind)}" for arg in function.args)
    if not function.returns.startswith("info:"):
        return _definition(function, arguments, result_annotation(function.returns))
    info = function.returns.removeprefix("info:")
    by_type: dict[str, list[str]] = {}
    for member in INFO_TYPES[info]:
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
    """The text of `__init__.pyi`."""
    lines = [
        "# Made by `python -m xpushare.ur._generate` from `_spec.py`: not to be edited.",
        "# ruff: noqa: E501",
        "# fmt: off",
        "from collections.abc import Sequence",
        "from typing import Any, Literal, overload",
        "",
        *_reimports("_result", ["Result"]),
        *_reimports("ur._enums", ENUMERATIONS),
        *_reimports("ur._error", ["URError"]),
        *_reimports("ur._objects", OBJECTS),
        *_reimports("ur._structs", STRUCTS),
    ]
    for function in FUNCTIONS.values():
        lines += ["", *_function(function)]
    return "\n".join(lines) + "\n"


# --- the reference page -----------------------------------------------------------------------------


def _own_results(function: Function) -> list[str]:
    """The results that the general errors of the package have here, where they differ from the errors' own."""
    found = RESULTS.get(function.name, {})
    names: list[tuple[type[XpuShareError], Result]] = [
        (error, found[error.default_result])
        for error in (InvalidArgumentError, FeatureNotSupportedError, DeviceError)
        if error.default_result in found
    ]
    return [f"`{error.__name__}` is `{result.name}` here" for error, result in names]


def _section(function: Function) -> list[str]:
    signature = ", ".join(arg.name for arg in function.args)
    lines = [f"## `{function.name}`", "", f"`{function.name}({signature})` → `{result_annotation(function.returns)}`"]
    lines += ["", function.summary]
    if function.notes:
        lines += ["", function.notes]
    if function.args:
        lines += ["", "| argument | type | may be `None` |", "|---|---|---|"]
        lines += [
            f"| `{arg.name}` | `{annotation(arg.base_kind)}` | {'yes' if arg.optional else 'no'} |".replace(
                " | int`", " \\| int`"
            ).replace("bytes | bytearray | memoryview", "bytes \\| bytearray \\| memoryview")
            for arg in function.args
        ]
    lines += ["", "| result | when |", "|---|---|"]
    decided = len(function.checks)
    origins = {"layer": "", "documented": " (documented)", "adapter": " (as the Level Zero adapter)"}
    for number, error in enumerate(function.errors):
        origin = origins[function.checks[number].origin] if number < decided else ""
        lines.append(f"| `{error.result}` | {error.condition}{origin} |")
    if own := _own_results(function):
        lines += ["", "; ".join(own) + "."]
    operations = [operation for operation in OPERATIONS.values() if function.name in operation.ur]
    if function.name in PYTHON:
        lines += ["", f"In Python: {PYTHON[function.name]}"]
    if operations:
        where = ", ".join(
            f"`{each.name}` (`{each.function.__module__}.{each.function.__name__}`)" for each in operations
        )
        rules = sorted({rule for each in operations for rule in each.rules})
        lines += ["", f"Core operation: {where}"]
        if rules:
            lines += ["", f"Rules of sharing that it keeps: {', '.join(map(str, rules))}"]
    return lines


def reference() -> str:
    """The text of `docs/ur-reference.md`."""
    lines = [INTRODUCTION]
    for function in FUNCTIONS.values():
        lines += [*_section(function), ""]
    lines += ["## Queries", ""]
    for info, members in INFO_TYPES.items():
        optional = OPTIONAL_QUERIES.get(info, frozenset())
        lines += [f"### `{info}`", "", "| query | number | answer |", "|---|---|---|"]
        numbers = getattr(_enums, info).__members__
        for member in members:
            mark = " (optional)" if member in optional else ""
            answer = _result_of_query(info, member).replace("|", "\\|")
            lines.append(f"| `{member}` | {int(numbers[member]):#x} | `{answer}`{mark} |")
        lines.append("")
    return "\n".join(lines)


def targets() -> dict[Path, str]:
    """The generated files of a checkout and what they should contain."""
    here = Path(__file__).resolve()
    return {here.with_name("__init__.pyi"): stub(), here.parents[3] / "docs" / "ur-reference.md": reference()}


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
