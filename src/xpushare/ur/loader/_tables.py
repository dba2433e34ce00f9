"""Writes the C half of the library from the declarations: an entry point for each function, and the dispatch tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from xpushare.ur._functions import FUNCTIONS
from xpushare.ur._spec import Function
from xpushare.ur.loader._builds import BUILDS, OF_THE_LOADER, ORDER, PROTOTYPES, TABLES

__all__ = ["NUMBERED", "Parameter", "parameters", "tables"]

NUMBERED: Final = sorted(FUNCTIONS.keys() - OF_THE_LOADER.split())
"""The functions by the numbers that the library knows them by."""

_C: Final = {
    "u8": "uint8_t",
    "u32": "uint32_t",
    "i32": "int32_t",
    "u64": "uint64_t",
    "bool": "bool",
    "u64x3": "xp_three",
}

HEAD: Final = """\
/* Made by `python -m xpushare.ur._generate` from src/xpushare/ur: not to be edited. */
"""


class Parameter(NamedTuple):
    """A parameter of a C function."""

    name: str
    passed: str
    """u8, i32, u32, u64, bool, u64x3, handle or ptr."""
    optional: bool
    """It may be null."""


def _prototypes() -> Iterator[tuple[str, tuple[Parameter, ...]]]:
    for line in PROTOTYPES.split(";"):
        name, *texts = line.split() or ("",)
        if name:
            split = (text.partition(":") for text in texts)
            yield name, tuple(Parameter(each, how.rstrip("?"), how.endswith("?")) for each, _colon, how in split)


_PARAMETERS: Final = dict(_prototypes())


def parameters(function: str) -> tuple[Parameter, ...]:
    """Those of a C function, in order."""
    return _PARAMETERS[function]


def _fingerprint(names: list[str]) -> int:
    """What the library computes over the names in a loader: the sum of their 64-bit FNV-1a hashes."""
    total = 0
    for name in names:
        number = 0xCBF29CE484222325
        for byte in name.encode():
            number = (number ^ byte) * 0x100000001B3 % (1 << 64)
        total += number
    return total % (1 << 64)


def _entry(number: int, function: Function) -> str:
    """An entry point, which hands its arguments on as 64-bit words."""
    declared: list[str] = []
    words: list[str] = []
    for i, parameter in enumerate(parameters(function.name)):
        declared.append(f"{_C.get(parameter.passed, 'void *')} a{i}".replace("* ", "*"))
        if parameter.passed == "u64x3":
            words += [f"a{i}.{axis}" for axis in "xyz"]
        else:
            words.append(f"(uintptr_t)a{i}" if parameter.passed in ("handle", "ptr") else f"a{i}")
    return (
        f"static uint32_t {function.name}({', '.join(declared)})\n"
        f"{{\n    const uint64_t words[] = {{{', '.join(words)}}};\n"
        f"    return xp_answer({number}, words, {len(words)});\n}}\n"
    )


def tables() -> str:
    """The text of `functions.h`."""
    lines = [HEAD]
    lines += [_entry(number, FUNCTIONS[name]) for number, name in enumerate(NUMBERED)]
    lines += [f"#define XP_FUNCTIONS {len(NUMBERED)}", ""]
    lines += ["/* Gives something back: answered as done where nothing can be asked any more. */"]
    lines += ["static const bool xp_ends[XP_FUNCTIONS] = {"]
    lines += [f"    [{number}] = true, /* {name} */" for number, name in enumerate(NUMBERED) if FUNCTIONS[name].ends]
    lines += ["};", ""]
    known: dict[tuple[str, str], str] = {}
    for getter, layouts in TABLES.items():
        for i, (builds, names) in enumerate(layouts.items()):
            known |= {(getter, build): f"{getter}_{i}" for build in builds.split()}
            slots = [f"XP_SLOT({name})" if name in FUNCTIONS else f"XP_NONE /* {name} */" for name in names.split()]
            lines += [f"static const xp_slot {getter}_{i}[] = {{", *(f"    {slot}," for slot in slots), "};"]
    getters = sorted(TABLES)
    lines += ["", *(f"#define XP_{getter} {i}" for i, getter in enumerate(getters)), ""]
    lines += [f"#define XP_TABLES {len(getters)}", "#define XP_GETTERS(G) \\"]
    lines += ["    " + " ".join(f"G({getter})" for getter in getters), ""]
    lines += ["static const xp_build xp_builds[] = {"]
    for build in BUILDS:
        order = ORDER[build].split()
        by_name = {
            getter: names for getter in order for builds, names in TABLES[getter].items() if build in builds.split()
        }
        named = [*order, *(name for names in by_name.values() for name in names.split())]
        lines += [f'    {{"{build}", {len(named)}, {_fingerprint(named):#x}ull, {{']
        lines += [f"        XP_TABLE(XP_{getter}, {known[getter, build]})," for getter in order]
        lines += ["    }},"]
    return "\n".join([*lines, "};", ""])
