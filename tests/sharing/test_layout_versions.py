"""Each layout that processes share has a version, and a layout that changes takes another one.

Processes of two builds of this package meet in memory, files and messages. The test computes a digest of each layout
from its declarations. If it fails, you have changed a layout: raise the version that it names, and write down the new
digest. Only if nothing but a name has changed, and processes of both builds still understand each other, write down
the digest alone.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import re
import struct
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xpushare as xs
from harness import Child, kept
from xpushare import _native
from xpushare.adapters.stream import memory
from xpushare.adapters.virtual_memory import memory as virtual_memory
from xpushare.arrays.containers import flatten
from xpushare.channels import frames, geometry, groups
from xpushare.keeper import process
from xpushare.objects.message import text_of
from xpushare.sharing import handle, keeping, layout, naming, node

ENGINE = Path(__file__).parents[2] / "src" / "engine"
# Structures, and enumerations by their first names, that stay in one process.
LOCAL = {
    "xp_group", "xp_watched", "xp_own_place", "xp_end", "xp_frame", "XP_GROUP_WATCHED", "XP_GROUP_MAKE",
    "XP_PLACE_OVER", "XP_LOCK_HELD", "XP_GOT",
}  # fmt: skip
VERSIONS = {
    "XP_VERSION": _native.CONSTANTS["VERSION"], "XP_MESSAGE_VERSION": _native.CONSTANTS["MESSAGE_VERSION"],
    "XP_GROUP_VERSION": _native.GROUP_VERSION, "naming.FORMAT": naming.FORMAT, "keeping.FORMAT": keeping.FORMAT,
}  # fmt: skip


def declared(*headers: str) -> dict[str, str]:
    """The declarations of some headers by name: each structure, enumeration (by its first name) and `#define`."""
    found: dict[str, str] = {}
    for header in headers:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", (ENGINE / header).read_text(), flags=re.DOTALL)
        text = text.replace("\\\n", " ")
        for name, value in re.findall(r"^#define (XP_\w+)[ \t]+(\S[^\n]*)$", text, re.MULTILINE):
            found[name] = f"#define {name} {value}"
        text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
        for body, name in re.findall(r"typedef struct \w* ?(\{[^}]*\}) (\w+);", text):
            found[name] = f"struct {name} {body}"
        for body, name in re.findall(r"\benum (\{ ?(\w+)[^}]*\});", text):
            found[name] = f"enum {body}"
    return {name: " ".join(each.split()) for name, each in found.items() if not name.endswith("VERSION")}


def keys_of(function: Any) -> list[str]:
    """The keys of the dict that a function makes."""
    (made,) = (
        each for each in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))) if isinstance(each, ast.Dict)
    )
    return [ast.literal_eval(key) for key in made.keys if key is not None]


TREE = {
    "a": [1, 1 << 40, -3, None, True, 0.5, float("inf"), 1j, "text", b"bytes", (), np.float32(2)], 7: ({"b": ()},),
}  # fmt: skip
DTYPES = [
    np.dtype(each)
    for each in ("f8", ">i4", "M8[s]", "S3", {"names": ["x", "y"], "formats": ["u1", "(2,3)f4"], "offsets": [1, 4]})
]


def layouts() -> dict[str, tuple[str, list[object]]]:
    """Of each layout: the name of its version, and what declares it."""
    engine, group = declared("layout.h"), declared("bell.h", "group.h", "lock.h", "channel.h")

    def with_prefix(*prefixes: str) -> list[str]:
        return [text for name, text in engine.items() if name.startswith(prefixes)]

    wire, tree = flatten(TREE)
    assert not wire
    channel = geometry.wanted((2, 3), "f4", None, xs.Device("native_cpu:0"), 8, "block", "drop", 1, 2, 512, 3, 128)
    described = json.loads(channel.text)[1:]  # the first is the device's uuid
    group_parts: list[object] = [text for name, text in group.items() if name not in LOCAL]
    group_parts += [groups._KINDS, groups._RECORD, groups._RECORDS, layout.NAME_FILE.format, groups._PID_AT]
    group_parts += [layout.CHANNEL_MAGIC, tuple(channel.numbers), described, frames._HEAD.format, frames.TEXT_NBYTES]
    group_parts += [frames.laid_out({"x": np.zeros((2, 3), "f4"), "y": [np.zeros(3, "i8")]}, 4096).text]
    group_parts += [frames.encode_meta(TREE, 4096)]
    keeper: list[object] = [
        keeping._HEAD.format,
        keeping._GOOD,
        keeping._BAD,
        keeping.FDS,
        keeping.HOLD,
        keeping.PUBLISH,
    ]
    keeper += [keeping.LIST, keeping.DROP, keeping.STOP, keeping.REPLACE, keeping.FORMATS]
    keeper += [keeping.Fact._fields, keeping.Earlier._fields, keys_of(process._state)]
    return {
        "handle": (
            "XP_VERSION",
            [engine["xp_handle"], handle.FIELDS, *with_prefix("XP_HANDLE", "XP_KIND", "XP_SEAL", "XP_COOKIE")],
        ),
        "table": (
            "XP_VERSION",
            [
                *(engine[f"xp_{each}"] for each in ("table", "device", "entry", "label")),
                *with_prefix("XP_TABLE", "XP_ENTR", "XP_REASON"), memory._HEAD.format, virtual_memory._RUN.format,
            ],
        ),
        "commons": (
            "XP_VERSION",
            [
                *(engine[f"xp_{each}"] for each in ("commons", "member", "words", "opens", "roles")),
                *with_prefix(
                    "XP_COMMONS", "XP_MEMBERS", "XP_MASK", "XP_SLOTS", "XP_LIFE", "XP_REAP_", "XP_POINT",
                    "XP_OUTSTANDING", "XP_FACTS", "XP_DEVICE", "XP_LATE", "XP_ROSTER", "XP_PICKLES",
                    "XP_CAUSE", "XP_EXITING", "XP_MARK",
                ),
            ],
        ),
        "socket": (
            "XP_VERSION",
            [
                *(engine[f"xp_{each}"] for each in ("wanted", "request", "given", "reply")),
                *with_prefix("XP_REQUEST", "XP_REPLY", "XP_OP", "XP_STATUS", "XP_FDS"),
            ],
        ),
        "message": (
            "XP_MESSAGE_VERSION",
            [engine["xp_message"], engine["xp_leaf"], *with_prefix("XP_MESSAGE", "XP_ARRAY"), text_of(DTYPES, tree)],
        ),
        "group": ("XP_GROUP_VERSION", group_parts),
        "name": (
            "naming.FORMAT",
            [naming.MAGIC, naming.HEAD.format, naming.ENTRY.format, naming._REAPER_AT],
        ),
        "keeper": ("keeping.FORMAT", keeper),
    }  # fmt: skip


def digest(parts: list[object]) -> str:
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


DIGESTS = {
    "handle": (4, "ad2b69f05c6c9c14"),
    "table": (4, "73fdd896eb4fb973"),
    "commons": (4, "085bbea9e417cc81"),
    "socket": (4, "4a19f2e16b9b9041"),
    "message": (4, "eab7bb562c9275d4"),
    "group": (2, "827e3d8e5c07a130"),
    "name": (1, "fbb9f56e67724fba"),
    "keeper": (2, "44908f9c46fc1eda"),
}  # fmt: skip


@pytest.mark.parametrize("name", layouts())
def test_a_layout_that_changes_takes_another_version(name: str) -> None:
    version, parts = layouts()[name]
    found = VERSIONS[version], digest(parts)
    assert found == DIGESTS[name], (
        f"the layout {name!r} has changed: see the beginning of this file, and raise {version}"
    )


def test_every_shared_structure_has_a_version() -> None:
    everything = declared("layout.h", "bell.h", "group.h", "lock.h", "channel.h")
    shared = {name for name, text in everything.items() if text.startswith("struct")} - LOCAL
    covered = {name for _, parts in layouts().values() for part in parts for name in str(part).split()[1:2]}
    assert shared - covered == set()
    assert len(shared) > 20


def test_the_numbers_of_a_channel_are_the_fields_of_the_engines_structure() -> None:
    body = declared("channel.h")["xp_geometry"].split("{")[1]
    fields = [name.strip() for line in body.split(";") for name in re.sub(r"\buint\d+_t\b|}", "", line).split(",")]
    assert [name for name in fields if name and name != "reserved" and name != "xp_geometry"] == list(
        geometry.Numbers._fields
    )


def test_the_digest_sees_a_change() -> None:
    before = declared("bell.h", "group.h")
    assert digest([before["xp_group_head"]]) != digest(
        [before["xp_group_head"].replace("reserved[24]", "reserved[20]")]
    )
    assert before["xp_bell"] == "struct xp_bell { uint32_t seq, sleepers; }"


# --- another version is an error that names both


def write_version(what: str) -> str:
    """Share something, and write another version into this process's own table or commons."""
    array = kept["array"] = xs.zeros(3)
    made = kept["handle"] = xs.share(array)
    table = node.current().table()
    if what == "table":
        struct.pack_into("<I", table._view, 8, 4242)
    else:
        (commons,) = (
            fd
            for fd in map(int, os.listdir("/proc/self/fd"))
            if os.path.lexists(f"/proc/self/fd/{fd}") and "xpushare-commons" in os.readlink(f"/proc/self/fd/{fd}")
        )
        os.pwrite(commons, struct.pack("<I", 4242), 8)
    return str(made)


@pytest.mark.parametrize("what", ["table", "commons"])
def test_another_version_of_the_memory_of_exports(what: str) -> None:
    with Child() as child:
        text = child.call(write_version, what)
        with pytest.raises(
            xs.InvalidHandleError, match=f"the {what} of process {child.pid} has version 4242 .* version 4"
        ):
            xs.attach(text)


def test_another_version_of_a_handle_and_of_a_message() -> None:
    with xs.share(xs.zeros(3)) as message, pytest.raises(xs.InvalidHandleError, match=r"version 258, .* version 4"):
        xs.attach(bytes(message)[:8] + b"\2\1" + bytes(message)[10:])
    with xs.malloc_host(8) as memory:
        raw = bytes(xs.ipc.memory.get(memory))
        with pytest.raises(xs.InvalidHandleError, match=r"version 258, .* version 4"):
            xs.ipc.memory.open(raw[:8] + b"\2\1" + raw[10:])
        xs.ipc.memory.put(raw)


def test_another_version_of_a_name() -> None:
    with Child() as child:
        child.call(lambda: xs.publish("versioned", xs.zeros(3), copy=True))
        path = naming.names_folder() / "versioned"
        content = path.read_bytes()
        with open(path, "r+b") as file:
            file.seek(10)
            file.write(b"\7\0")
        with pytest.raises(xs.InvalidHandleError, match=r"'versioned' has version 7 .* version 1"):
            xs.lookup("versioned", timeout=0)
        path.write_bytes(content)
        assert xs.attach(xs.lookup("versioned")).shape == (3,)
        child.call(lambda: xs.unpublish("versioned"))


def test_another_version_of_the_file_of_a_lock() -> None:
    with Child() as child:
        child.call(lambda: kept.__setitem__("lock", xs.Lock("versioned")))
        path = groups.folder() / "lock.versioned"
        at = _native.LAYOUT["name_file.version"]
        for found, version in (4242, 4242), (1, 0):  # the files of the first version have none
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(struct.pack("<I", version))
            with pytest.raises(xs.InvalidHandleError, match=f"version {found} .* version {_native.GROUP_VERSION}"):
                xs.Lock("versioned")
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(struct.pack("<I", _native.GROUP_VERSION))
        child.call(lambda: kept.pop("lock").close())
