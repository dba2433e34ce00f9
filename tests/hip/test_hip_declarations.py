"""The adapter's declarations and the forwarding library's against AMD's own headers, of two releases: static asserts by
a C compiler.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from forwarding import DRIVER, ROOT

from xpushare.adapters.hip import _numbers as n

RELEASES = {"bookworm": 5, "sid": 6}  # Debian's, and HIP's
STRUCTURES = {"hipIpcMemHandle_t": n.Handle, "hipIpcEventHandle_t": n.Handle, "hipMemAccessDesc": n.AccessDesc}
NEWER = {  # from release 6 on; the adapter uses them only where the library has the attribute
    "hipDeviceAttributeVirtualMemoryManagementSupported": int(n.Attribute.VirtualMemoryManagementSupported)
}
# Fields of ours that are members of a member there.
PATHS = {"location_type": "location.type", "location_id": "location.id", "requestedHandleTypes": "requestedHandleType"}

pytestmark = [pytest.mark.drivers("plain")]


def include(release: str) -> Path:
    folder = ROOT / release / "usr" / "include"
    if not (folder / "hip" / "hip_runtime_api.h").exists():
        pytest.skip("AMD's headers are not here")
    return folder


def compiled(release: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """gcc with AMD's headers of that release."""
    return subprocess.run(
        ["gcc", "-D__HIP_PLATFORM_AMD__", "-DAMD_HEADERS", "-include", "stdbool.h", "-I", str(include(release)), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def numbers(release: str) -> dict[str, int]:
    """The adapter's numbers, by HIP's names."""
    found = {f"hipError{each.name}": int(each) for each in n.Error}
    found |= {f"hipDeviceAttribute{each.name}": int(each) for each in n.Attribute}
    found |= {f"HIP_POINTER_ATTRIBUTE_{each.name}": int(each) for each in n.Pointer}
    found |= n.CONSTANTS
    names = {"none": "None", "r": "Read", "rw": "ReadWrite"}
    found |= {f"hipMemAccessFlagsProt{names[each]}": number for each, number in n.ACCESS.items()}
    if RELEASES[release] < 6:
        found = {name: number for name, number in found.items() if name not in NEWER}
    return {**found, "hipIpcMemLazyEnablePeerAccess": int(RELEASES[release] >= 6)}


def parameters(release: str) -> dict[str, list[str]]:
    """The types of each function's parameters."""
    text = compiled(release, "-E", "-P", str(include(release) / "hip" / "hip_runtime_api.h")).stdout
    found = {}
    for name in n.FUNCTIONS:
        said = re.search(rf"\bhipError_t\s+{name}\s*\(([^)]*)\)\s*;", text)
        assert said is not None, f"the header has no {name}"
        found[name] = [re.sub(r"(\w|\*)\s*\b\w+\s*$", r"\1", each.strip()) for each in said[1].split(",")]
    return found


def asserts(release: str) -> list[str]:
    """The conditions that must hold there."""
    found = [f"{name} == {number}" for name, number in numbers(release).items()]
    structures = dict(STRUCTURES)
    if RELEASES[release] >= 6:
        structures["hipMemAllocationProp"] = n.AllocationProp
    for name, ours in structures.items():
        found.append(f"sizeof({name}) == {ctypes.sizeof(ours)}")
        for field, *_ in ours._fields_:
            if ours is not n.Handle:
                at = getattr(ours, field).offset
                found.append(f"offsetof({name}, {PATHS.get(field, field)}) == {at}")
    for name, types in parameters(release).items():
        ours = n.FUNCTIONS[name]
        assert len(types) == len(ours), f"{name}: {types}"
        found += [f"sizeof({theirs}) == {ctypes.sizeof(mine)}" for theirs, mine in zip(types, ours, strict=True)]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("release", RELEASES)
def test_the_adapter_s_declarations(release: str, tmp_path: Path) -> None:
    conditions = asserts(release)
    assert len(conditions) > 100
    source = tmp_path / "asserts.c"
    lines = [f'_Static_assert({each}, "");' for each in conditions]
    source.write_text("#include <stddef.h>\n#include <hip/hip_runtime_api.h>\n" + "\n".join(lines) + "\n")
    done = compiled(release, "-w", "-fsyntax-only", str(source))
    assert done.returncode == 0, done.stderr
    print(f"HIP {RELEASES[release]}: {len(conditions)} static asserts hold")
    source.write_text(source.read_text().replace("hipErrorNotReady == 600", "hipErrorNotReady == 601"))
    assert compiled(release, "-w", "-fsyntax-only", str(source)).returncode != 0  # they can fail


@pytest.mark.parametrize("build", [(), ("-DAMD",)], ids=["plain", "amd"])
@pytest.mark.parametrize("release", RELEASES)
def test_the_forwarding_library_is_compiled_against_them(release: str, build: tuple[str, ...]) -> None:
    """Its functions have AMD's types, or the compiler refuses them."""
    done = compiled(release, "-w", "-fsyntax-only", *build, str(DRIVER / "forward_hip.c"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("release", RELEASES)
def test_the_forwarding_library_s_own_header(release: str, tmp_path: Path) -> None:
    """The header that it is built with has AMD's numbers and sizes."""
    text = (DRIVER / "hip_subset.h").read_text()
    known = re.findall(r"\b(hip[A-Z]\w+|HIP_POINTER_\w+) = (\d+)", text)
    known += re.findall(r"#define (hip\w+) (\d+)", text)
    assert len(known) > 70
    skipped = {*NEWER, "hipIpcMemLazyEnablePeerAccess"} if RELEASES[release] < 6 else set()
    found = [f"{name} == {number}" for name, number in known if name not in skipped]
    sizes = ["hipIpcMemHandle_t", "hipIpcEventHandle_t", "hipUUID", "hipMemAccessDesc", "hipMemAllocationProp"]
    (tmp_path / "sizes.c").write_text(
        f'#include <stdio.h>\n#include "{DRIVER / "hip_subset.h"}"\n'
        "int main(void) { " + "".join(f'printf("%zu ", sizeof({each}));' for each in sizes) + " }"
    )
    subprocess.run(["gcc", "-w", str(tmp_path / "sizes.c"), "-o", str(tmp_path / "sizes")], check=True)
    ours = subprocess.check_output([str(tmp_path / "sizes")], text=True).split()
    found += [f"sizeof({each}) == {size}" for each, size in zip(sizes, ours, strict=True)]
    lines = [f'_Static_assert({each}, "");' for each in found]
    (tmp_path / "asserts.c").write_text("#include <hip/hip_runtime_api.h>\n" + "\n".join(lines) + "\n")
    done = compiled(release, "-w", "-fsyntax-only", str(tmp_path / "asserts.c"))
    assert done.returncode == 0, done.stderr
