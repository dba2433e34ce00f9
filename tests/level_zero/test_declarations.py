"""The declarations against the official headers: what a C compiler says of sizes, offsets, types and constants."""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from level_zero_driver import ROOT

from xpushare.adapters.level_zero import _bindings as bindings

INCLUDE = ROOT / "include"
OFFICIAL = INCLUDE / "level_zero" / "ze_api.h"
SUBSET = Path(__file__).parent / "driver" / "ze_subset.h"
OURS = {each.__name__: each for each in bindings.STRUCTURES}

pytestmark = [
    pytest.mark.drivers("soft"),
    pytest.mark.skipif(not OFFICIAL.exists(), reason="the official headers are not here"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler"),
]


def printed(folder: Path, header: Path, expressions: list[str]) -> dict[str, int]:
    """The values of C expressions after `header`."""
    source, program = folder / "print.c", folder / "print"
    rows = "\n".join(f'    printf("%lld\\n", (long long)({each}));' for each in expressions)
    source.write_text(f'#include <stdio.h>\n#include <stddef.h>\n#include "{header}"\nint main(void)\n{{\n{rows}\n}}\n')
    subprocess.run(["cc", "-w", "-I", str(INCLUDE), str(source), "-o", str(program)], check=True)
    values = subprocess.check_output([str(program)], text=True).split()
    return {each: int(value) for each, value in zip(expressions, values, strict=True)}


@functools.cache
def header() -> str:
    """The official header without its comments, but those that say which structure a type is of."""
    lines = OFFICIAL.read_text().splitlines()
    return "\n".join(each if "ZE_STRUCTURE_TYPE" in each else each.partition("///")[0] for each in lines)


def members(name: str) -> list[str]:
    """The members of a structure in the official header, in their order."""
    found = re.search(rf"typedef struct _{name}\n{{(.*?)\n}} {name};", header(), re.DOTALL)
    assert found is not None, f"the header has no {name}"
    return re.findall(r"(\w+)(?:\[\w+\])?;", found[1])


def parameters(name: str) -> list[str]:
    """The types of a function's parameters in the official header."""
    found = re.search(rf"\n{name}\((.*?)\n\s*\);", header(), re.DOTALL)
    assert found is not None, f"the header has no {name}"
    lines = [line.strip() for line in found[1].split(",")]
    return [re.sub(r"\s*\w+$", "", line) for line in lines if line not in ("", "void")]


def structure_type(name: str) -> str:
    """The constant that says that a structure is of this type."""
    known = re.findall(rf"(ZE_STRUCTURE_TYPE_\w+) = \w+,\s*///< ::{name}\b", header())
    own = f"ZE_STRUCTURE_TYPE_{name[3:-2].upper()}"  # some have another one for a later version, too
    assert known, f"the header has no type for {name}"
    return own if own in known else known[0]


def path(name: str, field: str) -> str:
    """The member that a field of ours stands for."""
    inside = name == "ze_pci_ext_properties_t" and field in ("domain", "bus", "device", "function")
    return f"address.{field}" if inside else field


STRUCTURES = [name for name in OURS if name.startswith("ze_")]
TYPED = [name for name in STRUCTURES if hasattr(OURS[name], "STYPE")]
FUNCTIONS = [name for name in bindings.FUNCTIONS if name[2].isupper()]  # "zel…" are the loader's own


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the compiler says of all that is asked below."""
    expressions = [f"sizeof({name})" for name in STRUCTURES]
    for name in STRUCTURES:
        for field in OURS[name]._fields_:
            member = path(name, field[0])
            expressions += [f"offsetof({name}, {member})", f"sizeof((({name} *)0)->{member})"]
    expressions += [structure_type(name) for name in TYPED]
    expressions += list(bindings.RESULTS.values())
    expressions += [f"sizeof({each})" for name in FUNCTIONS for each in parameters(name)]
    return printed(tmp_path_factory.mktemp("official"), OFFICIAL, list(dict.fromkeys(expressions)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_structure(name: str, official: dict[str, int]) -> None:
    ours = OURS[name]
    fields = [field[0] for field in ours._fields_]
    assert list(dict.fromkeys(path(name, field).partition(".")[0] for field in fields)) == members(name)
    assert ctypes.sizeof(ours) == official[f"sizeof({name})"]
    for field in fields:
        member, found = path(name, field), getattr(ours, field)
        assert (found.offset, found.size) == (
            official[f"offsetof({name}, {member})"],
            official[f"sizeof((({name} *)0)->{member})"],
        ), field


def test_structure_types(official: dict[str, int]) -> None:
    assert {name: OURS[name].STYPE for name in TYPED} == {name: official[structure_type(name)] for name in TYPED}


def test_results(official: dict[str, int]) -> None:
    assert {official[name]: name for name in bindings.RESULTS.values()} == bindings.RESULTS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function(name: str, official: dict[str, int]) -> None:
    """Each argument has its size, and is a structure by value where the header has one."""
    arguments = bindings.FUNCTIONS[name][1]
    types = parameters(name)
    assert [ctypes.sizeof(each) for each in arguments] == [official[f"sizeof({each})"] for each in types]
    for ours, theirs in zip(arguments, types, strict=True):
        if issubclass(ours, ctypes.Structure):
            assert ours.__name__ == theirs


def test_the_driver_s_own_header(tmp_path: Path) -> None:
    """What the software driver uses where the official headers cannot be had."""
    text = re.sub(r"/\*.*?\*/", "", SUBSET.read_text(), flags=re.DOTALL)
    constants = re.findall(r"\b(ZE_\w+) = ", text)
    structures = set(re.findall(r"CHAINED\((ze_\w+_t)", text)) | set(re.findall(r"\} (ze_\w+_t);", text))
    expressions = constants + [f"sizeof({each})" for each in sorted(structures)]
    for name in sorted(structures & OURS.keys()):
        expressions += [f"offsetof({name}, {each})" for each in members(name)]
    assert len(constants) > 40
    assert len(structures) > 30
    assert printed(tmp_path, SUBSET, expressions) == printed(tmp_path, OFFICIAL, expressions)
