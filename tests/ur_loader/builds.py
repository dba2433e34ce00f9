#!/usr/bin/env python3
"""Writes src/xpushare/ur/loader/_builds.py: what the loaders of Unified Runtime expect of an adapter, from headers.

    tests/ur_loader/builds.py 2026.2=FOLDER 2026.1=FOLDER …

Each FOLDER holds `ur_api.h` and `ur_ddi.h` of that build (the wheel intel-sycl-rt has them in include/unified-runtime),
the newest build first. The headers themselves are not copied. A function must have the same parameters in all builds.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TARGET = Path(__file__).parents[2] / "src/xpushare/ur/loader/_builds.py"
HEAD = '''\
"""What the loaders of Unified Runtime expect of an adapter. Made by tests/ur_loader/builds.py: not to be edited."""

from __future__ import annotations

from typing import Final

__all__ = ["BUILDS", "OF_THE_LOADER", "ORDER", "PROTOTYPES", "TABLES"]
'''
CLASSES = {
    "bool": "bool", "ur_bool_t": "u8", "size_t": "u64", "const size_t": "u64", "uint64_t": "u64", "int32_t": "i32",
    "ur_native_handle_t": "u64", "ur_exp_image_mem_native_handle_t": "u64", "ur_rect_offset_t": "u64x3",
    "ur_rect_region_t": "u64x3",
}  # fmt: skip
POINTERS = re.compile(r"\*|_handle_t$|_callback_t$|_function_t$|_deleter_t$")


def class_of(c_type: str) -> str:
    """How a parameter is passed."""
    if c_type in CLASSES:
        return CLASSES[c_type]
    if c_type.endswith("_handle_t"):
        return "handle"
    return "ptr" if POINTERS.search(c_type) else "u32"  # an enumeration or flags


def prototypes(header: str) -> dict[str, list[str]]:
    """Function -> its parameters as `name:class`, with `?` where null is allowed."""
    found: dict[str, list[str]] = {}
    for function in re.finditer(r"ur_result_t UR_APICALL\s+(ur\w+)\((.*?)\);", header, re.DOTALL):
        parameters = found[function[1]] = []
        tags = ""
        for line in function[2].splitlines():
            text = line.strip()
            if text.startswith("///"):
                tags += text
                continue
            for each in re.findall(r"([^,]*?)(\w+)(\[\])?\s*(?:,|$)", text):
                c_type = " ".join(each[0].split()) + ("*" if each[2] else "")
                if not c_type:
                    continue
                parameters.append(f"{each[1]}:{class_of(c_type)}{'?' * ('[optional]' in tags)}")
            tags = "" if parameters else tags
    return found


def tables(header: str) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
    """The order of the tables in a handle's, the functions of each, and the function that fills it."""
    plain = re.sub(r"//[^\n]*", "", header)
    found = {
        table[1]: [f"ur{name}" for name in re.findall(r"ur_pfn(\w+)_t\s+pfn\w+;", table[2])]
        for table in re.finditer(r"typedef struct ur_(\w+)_dditable_t \{(.*?)\} \w+;", plain, re.DOTALL)
    }
    whole = re.search(r"typedef struct ur_dditable_t \{(.*?)\} ur_dditable_t;", plain, re.DOTALL)
    assert whole is not None
    order = re.findall(r"ur_(\w+)_dditable_t\s+\w+;", whole[1])
    of_table = r"(urGet\w+ProcAddrTable)\(\s*ur_api_version_t\s+\w+,\s*ur_(\w+)_dditable_t"
    getters = {table: name for name, table in re.findall(of_table, plain)}
    return order, found, getters


def wrapped(words: list[str]) -> str:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 118:
            lines.append("")
        lines[-1] += f"{word} "
    return "\n".join(line.rstrip() for line in lines)


def main(arguments: list[str]) -> None:
    builds = dict(each.split("=", 1) for each in arguments)
    known: dict[str, list[str]] = {}
    layouts: dict[str, dict[tuple[str, ...], list[str]]] = {}
    orders: dict[str, list[str]] = {}
    for build, folder in builds.items():
        for name, parameters in prototypes(Path(folder, "ur_api.h").read_text()).items():
            assert known.setdefault(name, parameters) == parameters, f"{name} of {build} has other parameters"
        order, found, getters = tables(Path(folder, "ur_ddi.h").read_text())
        orders[build] = [getters[table] for table in order]
        for table in order:
            layouts.setdefault(getters[table], {}).setdefault(tuple(found[table]), []).append(build)
    in_tables = {name for each in layouts.values() for names in each for name in names}
    lines = [HEAD, "# From the newest on; a build is told by the functions that its loader names."]
    lines += [f"BUILDS: Final = {tuple(builds)!r}".replace("'", '"'), ""]
    own = wrapped([name for name in sorted(known) if name not in in_tables])
    lines += ["# What every loader exports that is in no table.", f'OF_THE_LOADER: Final = """\n{own}\n"""', ""]
    lines += ["# The functions that fill the tables, in the order in which the tables stand in a handle's."]
    lines += ["ORDER: Final[dict[str, str]] = {"]
    lines += [f'    "{build}": """\n{wrapped(order)}\n""",' for build, order in orders.items()]
    lines += [
        "}",
        "",
        "# What is in a table, in order, and in which builds.",
        "TABLES: Final[dict[str, dict[str, str]]] = {",
    ]
    for getter, each in sorted(layouts.items()):
        lines += [f'    "{getter}": {{']
        lines += [f'        "{" ".join(of)}": """\n{wrapped(list(names))}\n""",' for names, of in each.items()]
        lines += ["    },"]
    lines += [
        "}",
        "",
        "# The parameters of each function, and how each is passed; `?`: it may be null.",
        'PROTOTYPES: Final = """',
    ]
    lines += [wrapped([name, *parameters]) + ";" for name, parameters in sorted(known.items()) if name in in_tables]
    TARGET.write_text("\n".join([*lines, '"""', ""]))


if __name__ == "__main__":
    main(sys.argv[1:])
