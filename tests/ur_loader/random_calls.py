"""The same random calls through Unified Runtime's own loader, with its parameter validation, and by `xpushare.ur`.

python tests/ur_loader/random_calls.py LIBRARY_OF_THE_LOADER [CALLS [SEED]]

Nulls, numbers that no enumeration has, flags, sizes, handles that are stale or of another kind. Each side has objects
of its own, which grow and go alike. Exit status 1 when a result differs.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from ctypes import c_bool, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, Final

from xpushare import ur
from xpushare.ur import Result, URError, _enums, _structs
from xpushare.ur._objects import HANDLES
from xpushare.ur._spec import FUNCTIONS, Arg, Function
from xpushare.ur.loader import LIBRARY
from xpushare.ur.loader._tables import NUMBERED, parameters

PASSED: Final[dict[str, Any]] = {"u8": c_uint8, "u32": c_uint32, "i32": c_int32, "u64": c_uint64, "bool": c_bool}
KINDS: Final = tuple(HANDLES)
# What is called back has a test of its own; what is reserved nowhere cannot be compared by address.
LEFT_OUT: Final = ("callback", "data", "string")
MOST: Final = 12  # objects of a kind
NOWHERE: Final = 0xBAD0_0000_0000_0000  # no address


class Three(ctypes.Structure):
    """A struct that C passes by value."""

    _fields_: ClassVar = [(axis, c_uint64) for axis in "xyz"]


class Both:
    """An object, or an address, on both sides."""

    def __init__(self, kind: str, here: Any, there: int, nbytes: int = 0) -> None:
        self.kind, self.here, self.there, self.nbytes = kind, here, there, nbytes


class Calls:
    def __init__(self, loader: str, seed: int) -> None:
        os.environ["UR_ADAPTERS_FORCE_LOAD"] = str(LIBRARY)
        self.loader = ctypes.CDLL(loader)
        self.random = random.Random(seed)
        config = c_void_p()
        assert self.loader.urLoaderConfigCreate(ctypes.byref(config)) == 0
        assert self.loader.urLoaderConfigEnableLayer(config, b"UR_LAYER_PARAMETER_VALIDATION") == 0
        assert self.loader.urLoaderInit(0, config) == 0
        self.live: dict[str, list[Both]] = {kind: [] for kind in (*KINDS, "memory", "range", "data")}
        self.stale: dict[str, list[Both]] = {kind: [] for kind in KINDS}
        self.keep: list[Any] = []
        self.results: Counter[Result] = Counter()
        self.begin()

    def begin(self) -> None:
        """The objects that there are from the start."""
        found = (c_void_p * 1)()
        assert self.loader.urAdapterGet(1, found, None) == 0
        [adapter, *_] = ur.urAdapterGet()
        self.live["adapter"].append(Both("adapter", adapter, found[0]))
        assert self.loader.urPlatformGet(c_void_p(found[0]), 1, found, None) == 0
        [platform] = ur.urPlatformGet(adapter)
        self.live["platform"].append(Both("platform", platform, found[0]))
        assert self.loader.urDeviceGet(c_void_p(found[0]), int(ur.DeviceType.ALL), 1, found, None) == 0
        self.live["device"].append(Both("device", ur.urDeviceGet(platform, ur.DeviceType.ALL)[0], found[0]))

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
        if not function.name.startswith("urEnqueue") and odds < 0.12:
            return NOWHERE, NOWHERE  # no command touches it
        pool = self.live["range" if "VirtualMem" in function.name else "memory"]
        if not pool:
            return 0, 0
        found = self.pick(*pool)
        # Commands take ordinary memory, too, and what lies behind a small allocation differs between the sides.
        offset = 0 if function.name.startswith("urEnqueue") else self.pick(0, 0, 0, 64)
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
            return getattr(_structs, kind)(*values), Three(*values)
        if family == "struct":
            return self.struct(kind) if not arg.optional or self.random.random() < 0.7 else (None, None)
        if family == "sequence":
            return self.handles(kind)
        if family == "pattern":
            data = self.pick(None, b"", b"a", b"abcd", b"abc", b"12345678")
            return data, data
        if family == "bytes":
            return self.data(function)
        raise AssertionError(f"{function.name}: {arg.kind}")

    def struct(self, kind: str) -> tuple[Any, Any]:
        here: list[int] = []
        there: list[int] = []
        layout = "I4xQ"
        for each in _structs.FIELD_KINDS[kind].values():
            family, _, name = each.partition(":")
            if family == "pointer":
                found = self.pick(None, *self.live["memory"])
                here.append(found.here if found else 0)
                there.append(found.there if found else 0)
            else:
                here.append(self.flags(name) if family == "flags" else self.pick(0, 0, 8, 64, 3))
                there.append(here[-1])
            layout += "Q" if family in ("pointer", "size") else "I"
        raw = ctypes.create_string_buffer(struct.pack(f"{layout}0Q", _structs.STRUCTURE_TYPES[kind], 0, *there))
        self.keep.append(raw)
        return getattr(_structs, kind)(*here), ctypes.addressof(raw)

    def handles(self, kind: str) -> tuple[Any, Any]:
        chosen = [self.handle(kind) for _ in range(self.pick(0, 0, 1, 1, 2))]
        return [here for here, _there in chosen], [there for _here, there in chosen]

    def data(self, function: Function) -> tuple[Any, Any]:
        """Handle data: bytes here; there (address, size)."""
        odds = self.random.random()
        if odds < 0.05:
            return None, (0, 256)
        pool = self.live["data"]
        if pool and (odds < 0.8 or "Put" in function.name):
            found = self.pick(*pool)
            raw = (
                ctypes.create_string_buffer(ctypes.string_at(found.there, 256), 256)
                if "Put" not in function.name
                else None
            )
            self.keep.append(raw)
            return found.here, (found.there if raw is None else ctypes.addressof(raw), 256)
        if "Put" in function.name:
            return None, (0, 256)
        wrong = bytes(self.pick(256, 7))
        raw = ctypes.create_string_buffer(wrong, len(wrong))
        self.keep.append(raw)
        return wrong, (ctypes.addressof(raw), len(wrong))

    # --- one call -------------------------------------------------------------------------------------------------

    def one(self) -> str | None:
        """What differed, or None."""
        function = FUNCTIONS[self.pick(*CALLED)]
        self.keep.clear()
        chosen = {arg.name: self.argument(function, arg) for arg in function.args}
        if "Profiling" in function.name:  # what it answers depends on what is complete
            for each in self.live["queue"]:
                self.here(FUNCTIONS["urQueueFinish"], [each.here])
                self.loader.urQueueFinish(c_void_p(each.there))
        for kind, pool in self.live.items():  # not too many
            if function.makes.replace(" ", "_") == kind and len(pool) >= MOST:
                return None
        here, made = self.here(function, [value for value, _there in chosen.values()])
        there, outputs = self.there(function, {name: value for name, (_here, value) in chosen.items()})
        self.results[here] += 1
        if here is not there:
            given = {name: value for name, (value, _there) in chosen.items()}
            return f"{function.name}({given}): {here.name} here, {there.name} there"
        if here is Result.SUCCESS:
            self.grow(function, chosen, made, outputs)
        return None

    def here(self, function: Function, arguments: list[Any]) -> tuple[Result, Any]:
        try:
            return Result.SUCCESS, getattr(ur, function.name)(*arguments)
        except URError as error:
            return error.result, None

    def there(self, function: Function, given: dict[str, Any]) -> tuple[Result, list[Any]]:
        prototype = parameters(function.name)
        args = {arg.name: arg for arg in function.args}
        arguments: list[Any] = []
        outputs: list[Any] = []
        for i, parameter in enumerate(prototype):
            name = parameter.name
            kind = args[name].base_kind if name in args else ""
            after = prototype[i + 1].name if i + 1 < len(prototype) else ""
            before = prototype[i - 1].name if i else ""
            if after in args and args[after].kind.startswith("sequence:"):
                arguments.append(c_uint32(len(given[after])))
            elif kind.startswith("sequence:"):
                array = (c_void_p * max(1, len(given[name])))(*given[name])
                self.keep.append(array)
                arguments.append(c_void_p(ctypes.addressof(array) if given[name] or not args[name].optional else 0))
            elif name == "patternSize":
                arguments.append(c_size_t(len(given["pPattern"] or b"")))
            elif kind == "pattern":
                arguments.append(ctypes.c_char_p(given[name]))
            elif kind == "bytes":
                arguments.append(c_void_p(given[name][0]))
            elif before in args and args[before].kind == "bytes" and name not in args:
                arguments.append(c_size_t(given[before][1]))
            elif name in args and parameter.passed == "ptr" and kind.startswith("handle:"):
                outputs.append(c_void_p(given[name]))  # goes in and comes out
                arguments.append(ctypes.byref(outputs[-1]))
            elif name in args:
                value = given[name]
                passed = PASSED.get(parameter.passed, c_void_p)
                arguments.append(value if isinstance(value, Three) else passed(value))
            elif parameter.passed in PASSED:  # of an answer of any size
                arguments.append(PASSED[parameter.passed](4096 if name == "propSize" else MOST))
            else:
                outputs.append((c_uint64 * 512)())
                arguments.append(outputs[-1])
        return Result(getattr(self.loader, function.name)(*arguments) & 0xFFFFFFFF), outputs

    def grow(self, function: Function, chosen: dict[str, tuple[Any, Any]], made: Any, outputs: list[Any]) -> None:
        """The objects that a call made, and those that it ended."""
        returns = function.returns
        if returns.startswith("handle:") and not returns.endswith("]") and outputs:
            there = outputs[-1].value if isinstance(outputs[-1], c_void_p) else outputs[-1][0]
            if made is not None and all(each.here is not made for each in self.live[returns[7:]]):
                self.live[returns[7:]].append(Both(returns[7:], made, there))
        elif returns == "bytes":
            self.live["data"].append(Both("data", made, outputs[0][0]))
        elif returns == "pointer":
            self.live["range" if "Reserve" in function.name else "memory"].append(Both("memory", made, outputs[0][0]))
        for pool in self.live.values():
            for each in [each for each in pool if not getattr(each.here, "references", 1)]:
                pool.remove(each)
                self.stale[each.kind] = [*self.stale[each.kind], each][-MOST:]
        if function.ends:  # an address may be another's soon
            gone = [chosen[arg.name][0] for arg in function.args if arg.base_kind in ("pointer", "bytes")]
            for kind in ("memory", "range", "data"):
                self.live[kind] = [each for each in self.live[kind] if each.here not in gone]


# Adapters, devices and the process's own memory are the same for both sides: what one side does to them the other sees.
COMMON: Final = (
    *("urAdapterGet", "urAdapterRetain", "urAdapterRelease", "urDeviceGet", "urDeviceRetain", "urDeviceRelease"),
    *("urUsmP2PEnablePeerAccessExp", "urUsmP2PDisablePeerAccessExp", "urUSMImportExp", "urUSMContextMemcpyExp"),
    *("urUSMHostAllocRegisterExp", "urUSMHostAllocUnregisterExp"),
)


def _called(function: Function) -> bool:
    if function.name in COMMON or "+" in function.returns:
        return False
    return not any(arg.base_kind.partition(":")[0] in LEFT_OUT for arg in function.args)


CALLED: Final = [name for name in NUMBERED if _called(FUNCTIONS[name])]


def main(loader: str, count: int = 25000, seed: int = 1, say: Callable[[str], object] = print) -> int:
    calls = Calls(loader, seed)
    differing: list[str] = []
    while sum(calls.results.values()) < count:
        difference = calls.one()
        if difference:
            differing.append(difference)
    for each in differing[:20]:
        say(each)
    common = ", ".join(f"{result.name} {times}" for result, times in calls.results.most_common(12))
    count = sum(calls.results.values())
    say(f"{count} calls of {len(CALLED)} functions, seed {seed}: {len(differing)} results differ; {common}")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
