"""The software drivers of several vendors in one process: what `test_vendor_pairs` builds, and begins in its children.

HIP is the forwarding library over the software driver of tests/hip/driver, and Level Zero the software driver of
tests/level_zero/driver in its loader's place, unless the environment names others. CUDA's binding is scripted; its
memory is that of a second copy of HIP's software driver, which loads as libcuda.so.1. So each of the two knows its own
pointers alone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path.append(str(TESTS / "cuda"))

from scripted_driver import Description, ScriptedDriver, Struct  # noqa: E402

from harness import kept  # noqa: E402

__all__ = ["SoftCuda", "backing", "begin", "build"]

ENGINE = TESTS.parent / "src/native/mock/software_streams.c"
CUDA = "XPUSHARE_TEST_CUDA"  # names the library
LEVEL_ZERO = ("ZE_ENABLE_ALT_DRIVERS", "XPUSHARE_LEVEL_ZERO")


def build(folder: Path) -> dict[str, str]:
    """Compile what the environment does not name; returns the children's environment."""
    hip, ze = TESTS / "hip/driver", TESTS / "level_zero/driver"
    soft = [str(hip / "soft_cuda.c"), str(ENGINE)]
    commands = {"libcuda.so.1": soft}
    environment = {CUDA: str(folder / "libcuda.so.1")}
    if "XPUSHARE_HIP_LIBRARY" not in os.environ:
        commands["libamdhip64.so.6"] = ["-fvisibility=hidden", str(hip / "forward_hip.c"), "-ldl"]
        commands["soft_cuda.so"] = soft
        environment["XPUSHARE_HIP_LIBRARY"] = str(folder / "libamdhip64.so.6")
        environment["HIP_FORWARD_TO"] = str(folder / "soft_cuda.so")
    if not any(map(os.environ.get, LEVEL_ZERO)):
        commands["libze_loader.so.1"] = ["-DSTAND_IN", "-Wl,-Bsymbolic", *map(str, sorted(ze.glob("soft_*.c")))]
        path = os.environ.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{folder}:{path}" if path else str(folder)
        environment["ZE_ENABLE_ALT_DRIVERS"] = str(folder / "libze_loader.so.1")
    compiler = ["cc", "-O0", "-shared", "-fPIC", "-pthread"]
    for name, rest in commands.items():
        subprocess.run([*compiler, f"-Wl,-soname,{name}", "-o", folder / name, *rest], check=True)
    return environment


def _note(fd: int) -> Path:
    """Where a process says what its character device stands for."""
    return Path(os.environ[CUDA]).with_name(f"device-{os.fstat(fd).st_rdev}")


def backing(fd: int) -> str:
    """The file with the memory behind a descriptor that was exported."""
    return _note(fd).read_text() if stat.S_ISCHR(os.fstat(fd).st_mode) else f"/proc/self/fd/{fd}"


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Ipc(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 64),)


class SoftCuda(ScriptedDriver):
    """The scripted binding, over memory that other processes can map."""

    def __init__(self, library: str) -> None:
        super().__init__()
        self.c = ctypes.CDLL(library)
        self.external: dict[int, mmap.mmap] = {}

    def made(self, name: str, kind: Any, *arguments: Any) -> tuple[Any, ...]:
        out = kind()
        return getattr(self.c, name)(ctypes.byref(out), *arguments), out.value

    def run(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        return (getattr(self.c, name)(*arguments),)

    def allocate(self, nbytes: int) -> int:
        """What another library's cudaMalloc returns."""
        code, address = self.made("cuMemAlloc_v2", ctypes.c_uint64, ctypes.c_size_t(nbytes))
        assert not code
        return int(address)

    def cuMemCreate(self, nbytes: int, prop: Any, _flags: int) -> tuple[Any, ...]:
        given = _Properties(1, 1, _Location(1, prop.location.id))
        made = self.made("cuMemCreate", ctypes.c_uint64, ctypes.c_size_t(nbytes), ctypes.byref(given), 0)
        self.homes[made[1]] = prop.location.id
        return made

    def cuMemRelease(self, handle: int) -> tuple[Any, ...]:
        return self.run("cuMemRelease", ctypes.c_uint64(handle))

    def cuMemRetainAllocationHandle(self, address: int) -> tuple[Any, ...]:
        """A handle of its own, by a round through a file descriptor."""
        handles = [each for start, (nbytes, each) in self.pieces.items() if start <= address < start + nbytes]
        if not handles:
            return 1, None
        handle = handles[0]
        _, fd = self._file(handle)
        made = self._imported(fd)
        os.close(fd)
        self.homes[made[1]] = self.homes[handle]
        return made

    def cuMemExportToShareableHandle(self, handle: int, _kind: int, _flags: int) -> tuple[Any, ...]:
        """A character device, as the driver's are. A file says what it stands for, which stays open here."""
        _, memory = self._file(handle)
        master, slave = os.openpty()
        os.close(master)
        _note(slave).write_text(f"/proc/{os.getpid()}/fd/{memory}")
        return 0, slave

    def cuMemImportFromShareableHandle(self, fd: int, _kind: int) -> tuple[Any, ...]:
        memory = os.open(backing(fd), os.O_RDWR)
        made = self._imported(memory)
        _note(fd).write_text(f"/proc/{os.getpid()}/fd/{memory}")  # stays open: the exporter may end
        return made

    def _file(self, handle: int) -> tuple[Any, ...]:
        return self.made("cuMemExportToShareableHandle", ctypes.c_int, ctypes.c_uint64(handle), 1, 0)

    def _imported(self, fd: int) -> tuple[Any, ...]:
        made = self.made("cuMemImportFromShareableHandle", ctypes.c_uint64, ctypes.c_void_p(fd), 1)
        self.homes.setdefault(made[1], 0)
        return made

    def cuMemAddressReserve(self, nbytes: int, _alignment: int, address: int, _flags: int) -> tuple[Any, ...]:
        given = ctypes.c_size_t(nbytes), ctypes.c_size_t(0), ctypes.c_uint64(address), ctypes.c_uint64(0)
        return self.made("cuMemAddressReserve", ctypes.c_uint64, *given)

    def cuMemAddressFree(self, address: int, nbytes: int) -> tuple[Any, ...]:
        return self.run("cuMemAddressFree", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def cuMemMap(self, address: int, nbytes: int, offset: int, handle: int, _flags: int) -> tuple[Any, ...]:
        given = ctypes.c_uint64(address), ctypes.c_size_t(nbytes), ctypes.c_size_t(offset), ctypes.c_uint64(handle)
        self.pieces[address] = nbytes, handle
        return self.run("cuMemMap", *given, ctypes.c_uint64(0))

    def cuMemUnmap(self, address: int, nbytes: int) -> tuple[Any, ...]:
        del self.pieces[address]
        return self.run("cuMemUnmap", ctypes.c_uint64(address), ctypes.c_size_t(nbytes))

    def cuMemSetAccess(self, address: int, nbytes: int, descriptors: list[Any], _count: int) -> tuple[Any, ...]:
        class Access(ctypes.Structure):
            _fields_ = (("location", _Location), ("flags", ctypes.c_int))

        given = [Access(_Location(1, one.location.id), one.flags) for one in descriptors]
        listed = (Access * len(given))(*given)
        return self.run("cuMemSetAccess", ctypes.c_uint64(address), ctypes.c_size_t(nbytes), listed, len(given))

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        if address in self.external:
            del self.external[address]
            return (0,)
        return self.run("cuMemFree_v2", ctypes.c_uint64(address))

    def cuIpcGetMemHandle(self, address: int) -> tuple[Any, ...]:
        out = _Ipc()
        return self.c.cuIpcGetMemHandle(ctypes.byref(out), ctypes.c_uint64(address)), Struct(ctypes.string_at(
            ctypes.byref(out), 64))  # fmt: skip

    def cuIpcOpenMemHandle(self, handle: Struct, _flags: int) -> tuple[Any, ...]:
        return self.made("cuIpcOpenMemHandle_v2", ctypes.c_uint64, _Ipc.from_buffer_copy(handle.raw), 1)

    def cuIpcCloseMemHandle(self, address: int) -> tuple[Any, ...]:
        return self.run("cuIpcCloseMemHandle", ctypes.c_uint64(address))

    def cuImportExternalMemory(self, given: Description) -> tuple[Any, ...]:
        made = self.new("external")
        self.sizes[made] = given.handle.fd  # it is the driver's
        return 0, made

    def cuExternalMemoryGetMappedBuffer(self, memory: int, piece: Description) -> tuple[Any, ...]:
        mapped = mmap.mmap(self.sizes[memory], piece.offset + piece.size)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped)) + piece.offset
        self.external[address] = mapped
        return 0, address

    def cuDestroyExternalMemory(self, memory: int) -> tuple[Any, ...]:
        os.close(self.sizes.pop(memory))
        return super().cuDestroyExternalMemory(memory)

    def _pointer(self, attribute: int, address: int) -> tuple[Any, ...]:
        start, nbytes = ctypes.c_uint64(), ctypes.c_size_t()
        if self.c.cuMemGetAddressRange_v2(ctypes.byref(start), ctypes.byref(nbytes), ctypes.c_uint64(address)):
            return 1, None
        code, found = self.made("cuPointerGetAttribute", ctypes.c_uint64, attribute, ctypes.c_uint64(address))
        known = {2: 2, 10: 1, 11: start.value, 12: nbytes.value, 14: 0, 17: 0}
        return 0, known[attribute] if code else found


def begin() -> None:
    """In a child: have this package's CUDA adapter use the scripted binding."""
    from xpushare.adapters.cuda import _adapter

    made: Any = _adapter.Cuda
    driver = kept["cuda"] = SoftCuda(os.environ[CUDA])
    _adapter.Cuda = lambda: made(driver)  # type: ignore[assignment,misc]
