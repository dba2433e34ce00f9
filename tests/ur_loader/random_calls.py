"""The same random calls through Unified Runtime's own loader, with its parameter validation, and by `xpushare.ur`.

python tests/ur_loader/random_calls.py LIBRARY_OF_THE_LOADER [CALLS [SEED]]

Nulls, numbers that no enumeration has, flags, sizes, handles that are stale or of another kind. The loader is in a
process of its own, so that each side has objects of its own, also those that a process has once (adapters, devices,
peer access, registered memory); they grow and go alike. Exit status 1 when a result differs.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import random
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from ctypes import c_bool, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from queue import SimpleQueue
from typing import Any, ClassVar, Final

from xpushare import ur
from xpushare.ur import Result, URError, _enums, _structs
from xpushare.ur._callbacks import call_soon
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import FUNCTIONS, Arg, Function
from xpushare.ur.loader import LIBRARY
from xpushare.ur.loader._tables import NUMBERED, parameters

PASSED: Final[dict[str, Any]] = {"u8": c_uint8, "u32": c_uint32, "i32": c_int32, "u64": c_uint64, "bool": c_bool}
KINDS: Final = tuple(HANDLES)
MOST: Final = 12  # objects of a kind
KIND_OF_POOL: Final = {"USM memory": "memory"}
NOWHERE: Final = 0xBAD0_0000_0000_0000  # no address


class Three(ctypes.Structure):
    """A struct that C passes by value."""

    _fields_: ClassVar = [(axis, c_uint64) for axis in "xyz"]


# --- the process of the loader ----------------------------------------------------------------------------------------

Given = tuple[Any, ...]
"""An argument of a C function: what it is, and what that needs."""


def argument(given: Given, keep: list[Any], outputs: list[Any]) -> Any:
    what, *said = given
    if what == "number":
        passed, value = said
        return PASSED.get(passed, c_void_p)(value)
    if what == "value":
        return Three(*said)
    if what == "data" or what == "copy":  # bytes, or those that lie at an address
        (data,) = said if what == "data" else (ctypes.string_at(*said),)
        keep.append(ctypes.create_string_buffer(data, max(1, len(data))))
        return c_void_p(ctypes.addressof(keep[-1]))
    if what == "function":
        return ctypes.cast(called_back if said == ["urEventSetCallback"] else ctypes.CDLL(None).getpid, c_void_p)
    outputs.append((c_uint64 * 512)(*said))  # what comes out, and may go in
    return outputs[-1]


def serve(loader: str) -> None:
    """Make the calls that come, until no more come."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.environ["UR_ADAPTERS_FORCE_LOAD"] = str(LIBRARY)
    library = ctypes.CDLL(loader)
    config = c_void_p()
    assert library.urLoaderConfigCreate(ctypes.byref(config)) == 0
    assert library.urLoaderConfigEnableLayer(config, b"UR_LAYER_PARAMETER_VALIDATION") == 0
    assert library.urLoaderInit(0, config) == 0
    own, memory = own_event(library), ordinary()
    pickle.dump([address for address, _memory in memory], answers)
    answers.flush()
    while True:
        try:
            name, given = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        keep: list[Any] = []
        outputs: list[Any] = []
        result = getattr(library, name)(*(argument(each, keep, outputs) for each in given))
        if name == "urEventSetCallback" and result == 0:
            after_callback(library, own)
        pickle.dump((result & 0xFFFFFFFF, [each[:MOST] for each in outputs]), answers)
        answers.flush()


called: Final[SimpleQueue[None]] = SimpleQueue()
called_back: Final = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_void_p)(lambda *_said: called.put(None))


def own_event(library: ctypes.CDLL) -> c_void_p:
    """An event for which no other reference is kept."""
    adapter, platform, device, context, event = (c_void_p() for _ in range(5))
    description = struct.pack("I4xQI4x", _structs.STRUCTURE_TYPES["ExpEventDesc"], 0, 0)
    for result in (
        library.urAdapterGet(1, ctypes.byref(adapter), None),
        library.urPlatformGet(adapter, 1, ctypes.byref(platform), None),
        library.urDeviceGet(platform, int(ur.DeviceType.ALL), 1, ctypes.byref(device), None),
        library.urContextCreate(1, ctypes.byref(device), None, ctypes.byref(context)),
        library.urEventCreateExp(context, device, description, ctypes.byref(event)),
        library.urDeviceRelease(device),
        library.urAdapterRelease(adapter),
    ):
        assert result == 0
    return event


def after_callback(library: ctypes.CDLL, own: c_void_p) -> None:
    """A callback was asked for: wait until it was called and its event given up, which comes before that of another."""
    called.get(timeout=60)
    assert library.urEventSetCallback(own, int(ur.ExecutionInfo.COMPLETE), called_back, None) == 0
    called.get(timeout=60)


def ordinary() -> list[tuple[int, Any]]:
    """Memory of the process's own, with room behind it for the largest size."""
    found = [mmap.mmap(-1, 3 << 20) for _ in range(4)]
    return [(ctypes.addressof(c_uint8.from_buffer(each)), each) for each in found]


class Both:
    """An object, or an address, on both sides."""

    def __init__(self, kind: str, here: Any, there: int, nbytes: int = 0) -> None:
        self.kind, self.here, self.there, self.nbytes = kind, here, there, nbytes


class Calls:
    def __init__(self, loader: str, seed: int) -> None:
        self.random = random.Random(seed)
        command = [sys.executable, __file__, "serve", loader]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.live: dict[str, list[Both]] = {kind: [] for kind in (*KINDS, "memory", "range", "data", "ordinary")}
        self.stale: dict[str, list[Both]] = {kind: [] for kind in KINDS}
        self.results: Counter[Result] = Counter()
        self.called = threading.Event()
        self.memory = ordinary()
        for (here, _memory), there in zip(self.memory, pickle.load(self.process.stdout), strict=True):  # type: ignore[arg-type]
            self.live["ordinary"].append(Both("ordinary", here, there))
        for name in ("urAdapterGet", "urPlatformGet", "urDeviceGet"):  # the objects that there are from the start
            function = FUNCTIONS[name]
            chosen = {arg.name: self.first(arg) for arg in function.args}
            made, outputs = self.both(function, chosen)[1:]
            self.grow(function, chosen, made, outputs)

    def first(self, arg: Arg) -> tuple[Any, Any]:
        if arg.kind.startswith("handle:"):
            found = self.live[arg.kind.removeprefix("handle:")][0]
            return found.here, found.there
        return (int(ur.DeviceType.ALL),) * 2

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def ask(self, name: str, given: list[Given]) -> tuple[Result, list[Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump((name, given), self.process.stdin)
        self.process.stdin.flush()
        result, outputs = pickle.load(self.process.stdout)
        return Result(result), outputs

    # --- arguments: what stands for each here, and there ----------------------------------------------------------

    def pick(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def handle(self, kind: str) -> tuple[Any, int]:
        odds = self.random.random()
        if odds < 0.04:
            return None, 0
        pool = self.live.get(kind, [])
        if odds < 0.08:
            pool = self.stale.get(kind, [])
        elif odds < 0.11:
            pool = self.live[self.pick(*(each for each in KINDS if each != kind))]
        if not pool:
            return None, 0
        found = self.pick(*pool)
        return found.here, found.there

    def address(self, function: Function) -> tuple[int, int]:
        odds = self.random.random()
        if odds < 0.05:
            return 0, 0
        touches = function.name.startswith("urEnqueue") or "Memcpy" in function.name
        if not touches and odds < 0.12:
            return NOWHERE, NOWHERE
        kind = "range" if "VirtualMem" in function.name else "memory"
        pool = self.live["ordinary" if any(each in function.name for each in ("HostAlloc", "Import")) else kind]
        if not pool:
            return 0, 0
        found = self.pick(*pool)
        # Commands take ordinary memory, too, and what lies behind a small allocation differs between the sides.
        offset = 0 if touches else self.pick(0, 0, 0, 64)
        return found.here + offset, found.there + offset

    def number(self, kind: str) -> int:
        cls = getattr(_enums, kind)
        last = max(cls)
        gaps = [each for each in range(min(300, last)) if each not in set(cls)]
        choices = [*list(cls)[:200], *([self.pick(*gaps)] if gaps else []), int(last) + 1, 0x7FFFFFFF]
        return int(self.pick(*choices))

    def flags(self, kind: str) -> int:
        cls = getattr(_enums, kind)
        members = [int(each) for each in cls]
        return int(self.pick(0, 0, *members, members[0] | members[-1], 1 << 31))

    def argument(self, function: Function, arg: Arg) -> tuple[Any, Any]:
        """(for `xpushare.ur`, for C)"""
        family, _, kind = arg.base_kind.partition(":")
        if family == "handle":
            return self.handle(kind)
        if family == "pointer":
            return self.address(function)
        if family in ("size", "uint32", "uint64"):
            number = self.pick(0, 1, 4, 64, 4096, 4096, 8192, 1 << 21)
            return number, number
        if family == "bool":
            return (self.random.random() < 0.5,) * 2
        if family == "enum":
            return (self.number(kind),) * 2
        if family == "flags":
            return (self.flags(kind),) * 2
        if family == "value":
            values = [self.pick(0, 1, 2, 4, 64) for _ in range(3)]
            return getattr(_structs, kind)(*values), values
        if family == "struct":
            return self.struct(kind) if not arg.optional or self.random.random() < 0.7 else (None, None)
        if family == "sequence":
            return self.handles(kind)
        if family == "pattern":
            data = self.pick(None, b"", b"a", b"abcd", b"abc", b"12345678")
            return data, data
        if family == "bytes":
            return self.data(function)
        if family == "string":
            text = self.pick(None, "", "-O0", "-O2", "-foffload-fp32-prec-div", "-O9")
            return text, None if text is None else text.encode() + b"\0"
        if family == "callback":
            notified = self.random.random() < 0.9
            return (lambda *_said: self.called.set()) if notified else None, notified
        if family == "data":
            return (self.pick(0, 77),) * 2
        raise AssertionError(f"{function.name}: {arg.kind}")

    def struct(self, kind: str) -> tuple[Any, Any]:
        here: list[int] = []
        there: list[int] = []
        layout = "I4xQ"
        for each in _structs.FIELD_KINDS[kind].values():
            family, _, name = each.partition(":")
            if family == "pointer":
                found = self.pick(None, *self.live["memory"], *self.live["ordinary"])
                here.append(found.here if found else 0)
                there.append(found.there if found else 0)
            else:
                here.append(self.flags(name) if family == "flags" else self.pick(0, 0, 8, 64, 3))
                there.append(here[-1])
            layout += "Q" if family in ("pointer", "size") else "I"
        return getattr(_structs, kind)(*here), struct.pack(f"{layout}0Q", _structs.STRUCTURE_TYPES[kind], 0, *there)

    def handles(self, kind: str) -> tuple[Any, Any]:
        chosen = [self.handle(kind) for _ in range(self.pick(0, 0, 1, 1, 2))]
        return [here for here, _there in chosen], [there for _here, there in chosen]

    def data(self, function: Function) -> tuple[Any, Any]:
        """Handle data: bytes here; there an argument and its size."""
        odds = self.random.random()
        if odds < 0.05:
            return None, (("number", "ptr", 0), 256)
        pool = self.live["data"]
        put = "Put" in function.name  # which takes what was given out
        if pool and (odds < 0.8 or put):
            found = self.pick(*pool)
            return found.here, (("number", "ptr", found.there) if put else ("copy", found.there, 256), 256)
        if put:
            return None, (("number", "ptr", 0), 256)
        wrong = bytes(self.pick(256, 7))
        return wrong, (("data", wrong), len(wrong))

    # --- one call -------------------------------------------------------------------------------------------------

    def one(self) -> str | None:
        """What differed, or None."""
        function = FUNCTIONS[self.pick(*NUMBERED)]
        chosen = {arg.name: self.argument(function, arg) for arg in function.args}
        if "Profiling" in function.name:  # what it answers depends on what is complete
            for each in self.live["queue"]:
                self.here(FUNCTIONS["urQueueFinish"], [each.here])
                self.ask("urQueueFinish", [("number", "handle", each.there)])
        made_kinds = [KIND_OF_POOL.get(kind, kind) for kind in function.made]
        if any(len(self.live.get(kind, ())) >= MOST for kind in made_kinds):  # not too many
            return None
        (here, there), made, outputs = self.both(function, chosen)
        self.results[here] += 1
        if here is not there:
            given = {name: value for name, (value, _there) in chosen.items()}
            return f"{function.name}({given}): {here.name} here, {there.name} there"
        if here is Result.SUCCESS:
            self.grow(function, chosen, made, outputs)
        return None

    def both(
        self, function: Function, chosen: dict[str, tuple[Any, Any]]
    ) -> tuple[tuple[Result, Result], Any, list[Any]]:
        """The results on both sides; what it made here, and what came out there."""
        here, made = self.here(function, [value for value, _there in chosen.values()])
        there, outputs = self.there(function, {name: value for name, (_here, value) in chosen.items()})
        return (here, there), made, outputs

    def here(self, function: Function, arguments: list[Any]) -> tuple[Result, Any]:
        self.called.clear()
        try:
            made = getattr(ur, function.name)(*arguments)
        except URError as error:
            return error.result, None
        if function.name == "urEventSetCallback":
            assert self.called.wait(60)
            self.called.clear()
            call_soon(self.called.set)  # it has given up its event
            assert self.called.wait(60)
        return Result.SUCCESS, made

    def there(self, function: Function, chosen: dict[str, Any]) -> tuple[Result, list[Any]]:
        prototype = parameters(function.name)
        args = {arg.name: arg for arg in function.args}
        given: list[Given] = []
        for i, parameter in enumerate(prototype):
            name, passed = parameter.name, parameter.passed
            kind = args[name].base_kind.partition(":")[0] if name in args else ""
            after = prototype[i + 1].name if i + 1 < len(prototype) else ""
            before = prototype[i - 1].name if i else ""
            value = chosen.get(name)
            if after in args and args[after].kind.startswith("sequence:"):
                given.append(("number", passed, len(chosen[after])))
            elif kind == "sequence":
                there = bool(value) or not args[name].optional
                given.append(("data", struct.pack(f"{len(value)}Q", *value)) if there else ("number", "ptr", 0))
            elif name == "patternSize":
                given.append(("number", passed, len(chosen["pPattern"] or b"")))
            elif kind == "callback":
                given.append(("function", function.name) if value else ("number", "ptr", 0))
            elif kind in ("pattern", "struct", "string"):
                given.append(("number", "ptr", 0) if value is None else ("data", value))
            elif kind == "value":
                given.append(("value", *value))
            elif kind == "bytes":
                given.append(value[0])
            elif before in args and args[before].kind == "bytes" and name not in args:
                given.append(("number", passed, chosen[before][1]))
            elif kind == "size" and passed == "ptr":
                given.append(("data", struct.pack("Q", value)))
            elif given and before in args and args[before].kind == "size" and name == "propSize":  # of that
                given.append(("number", passed, 8))
            elif kind == "handle" and passed == "ptr":
                given.append(("output", value))  # goes in and comes out
            elif name in args:
                given.append(("number", passed, value))
            elif passed in PASSED:  # of an answer of any size
                given.append(("number", passed, 4096 if name == "propSize" else MOST))
            else:
                given.append(("output",))
        return self.ask(function.name, given)

    def grow(self, function: Function, chosen: dict[str, tuple[Any, Any]], made: Any, outputs: list[Any]) -> None:
        """The objects that a call made, and those that it ended."""
        parts = function.returns.split("+")
        for kind, value, output in zip(parts, made if len(parts) > 1 else (made,), outputs, strict=False):
            if kind.startswith("handle:"):
                values = value if kind.endswith("[]") else [value]
                for each, there in zip(values, output, strict=False):
                    self.add(kind.removeprefix("handle:").removesuffix("[]"), each, there)
            elif kind == "bytes":
                self.live["data"].append(Both("data", value, output[0]))
            elif kind == "pointer" and not {"USM memory", "opened memory", "reserved range"}.isdisjoint(function.made):
                self.live["range" if "Reserve" in function.name else "memory"].append(Both("memory", value, output[0]))
            elif kind == "int32" and len(parts) == 1:  # a file descriptor
                os.close(value)
        for pool in self.live.values():
            for each in [each for each in pool if not getattr(each.here, "references", 1)]:
                pool.remove(each)
                self.stale[each.kind] = [*self.stale[each.kind], each][-MOST:]
        if function.ends:  # an address may be another's soon
            gone = [chosen[arg.name][0] for arg in function.args if arg.base_kind in ("pointer", "bytes")]
            for kind in ("memory", "range", "data"):
                self.live[kind] = [each for each in self.live[kind] if each.here not in gone]

    def add(self, kind: str, here: Any, there: int) -> None:
        if here is not None and all(each.here is not here for each in self.live[kind]):
            self.live[kind].append(Both(kind, here, there))
            self.stale[kind] = [each for each in self.stale[kind] if each.here is not here]  # an adapter comes back


def main(loader: str, count: int = 25000, seed: int = 1, say: Callable[[str], object] = print) -> int:
    calls = Calls(loader, seed)
    differing: list[str] = []
    while sum(calls.results.values()) < count:
        difference = calls.one()
        if difference:
            differing.append(difference)
    for each in differing[:20]:
        say(each)
    calls.end()
    common = ", ".join(f"{result.name} {times}" for result, times in calls.results.most_common(12))
    count = sum(calls.results.values())
    say(f"{count} calls of {len(NUMBERED)} functions, seed {seed}: {len(differing)} results differ; {common}")
    return bool(differing)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        sys.exit(serve(sys.argv[2]))
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
