"""What the tests run in a child that is a Vulkan program. What it keeps is in `kept`, of the harness."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

pytest.importorskip("vulkan", reason="needs the package vulkan: make vulkan")

from vulkan_program import Buffer, Program

import xpushare as xs
from harness import kept
from xpushare.integrations import vulkan

__all__ = ["allocate", "device", "export", "fill", "free", "host_buffer", "import_", "program", "read"]


def program() -> Program:
    if "program" not in kept:
        kept["program"] = Program()
    made: Program = kept["program"]
    return made


def device() -> xs.Device:
    return vulkan.device(*program().uuids(), name=program().name, type="cpu" if program().is_cpu else "gpu")


def allocate(nbytes: int, **options: Any) -> Buffer:
    buffer = kept["buffer"] = Buffer(program(), nbytes, **options)
    return buffer


def memory(buffer: Buffer, **options: Any) -> vulkan.ExternalMemory:
    fd = buffer.fd()
    try:
        return vulkan.ExternalMemory(fd, buffer.allocation_nbytes, device=device(), **options)
    finally:
        os.close(fd)


def export(nbytes: int, word: int) -> bytes:
    """A handle of a new buffer that is full of a word."""
    allocate(nbytes)
    fill(word)
    return bytes(xs.ipc.memory.get(memory(kept["buffer"], nbytes=nbytes)))


def fill(word: int) -> None:
    program().run(kept["buffer"].fill(word))


def free() -> None:
    kept.pop("buffer").close()


def import_(handle: bytes, dedicated: bool | None = None) -> tuple[int, int]:
    """Open a handle and import what it is for; returns the offset and the size that it says."""
    opened = xs.ipc.memory.open(handle, device=device())
    found = vulkan.memory_fd(opened)
    kept["opened"] = opened
    try:
        kept["buffer"] = Buffer(
            program(),
            found.nbytes,
            fd=found.fd,
            allocation_nbytes=found.allocation_nbytes,
            offset=found.offset,
            dedicated=found.dedicated if dedicated is None else dedicated,
        )
    except BaseException:
        os.close(found.fd)
        raise
    return found.offset, found.nbytes


def host_buffer(nbytes: int) -> tuple[Buffer, Any]:
    """A buffer over our memory of the host, and that as an array of words."""
    array = xs.empty(nbytes // 4, "u4", isolated=True)
    return Buffer(program(), nbytes, pointer=array.memory.ptr), array


def read() -> list[int]:
    """The different words in the buffer."""
    source: Buffer = kept["buffer"]
    target, array = host_buffer(source.nbytes)
    program().run(source.copy_to(target))
    words = np.unique(np.asarray(array)).tolist()
    target.close()
    return words
