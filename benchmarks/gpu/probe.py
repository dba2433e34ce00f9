# ruff: noqa: E501, C408, SIM115, ARG005, RUF059, B023, F841
"""What the CUDA driver does where its documentation is silent: each section in a process of its own, one JSON line a fact.

python -m benchmarks.gpu.probe [section ...]
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SECTIONS = (
    "attributes",
    "readonly",
    "streams",
    "capture",
    "blocking",
    "allocators",
    "demand",
    "exit",
    "sticky",
    "pool",
    "register",
    "channels",
    "fabric",
    "dma_buf",
)
RELAXED = 2


def say(**facts: Any) -> None:
    print(json.dumps(facts, default=str), flush=True)


def api() -> Any:
    from cuda.bindings import driver

    return driver


d: Any = None


def rc(result: Any) -> int:
    return int(result[0])


def ok(result: Any) -> Any:
    if int(result[0]):
        raise RuntimeError(f"{result[0]!r}")
    return result[1] if len(result) == 2 else result[1:] if len(result) > 2 else None


def start(context: bool = True) -> Any:
    global d
    d = api()
    ok(d.cuInit(0))
    dev = ok(d.cuDeviceGet(0))
    if context:
        ctx = ok(d.cuDevicePrimaryCtxRetain(dev))
        ok(d.cuCtxPushCurrent(ctx))
        return dev, ctx
    return dev


def prop() -> Any:
    p = d.CUmemAllocationProp()
    p.type = d.CUmemAllocationType(1)
    p.location.type = d.CUmemLocationType(1)
    p.location.id = 0
    p.requestedHandleTypes = d.CUmemAllocationHandleType(1)
    return p


def access(flags: int) -> Any:
    a = d.CUmemAccessDesc()
    a.location.type = d.CUmemLocationType(1)
    a.location.id = 0
    a.flags = d.CUmemAccess_flags(flags)
    return a


KEPT: list[Any] = []


def page(nbytes: int = 4096) -> tuple[int, Any]:
    fd = os.memfd_create("probe")
    os.ftruncate(fd, nbytes)
    m = mmap.mmap(fd, nbytes)
    KEPT.append(m)
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    return address, m


def registered(nbytes: int = 4096) -> tuple[int, Any]:
    address, m = page(nbytes)
    ok(d.cuMemHostRegister(address, nbytes, 3))
    return address, m


def attributes() -> None:
    dev = start(False)
    say(
        driver=ok(d.cuDriverGetVersion()),
        bindings=getattr(__import__("cuda.bindings", fromlist=["x"]), "__version__", "?"),
    )
    for n in (41, 83, 89, 91, 99, 101, 102, 103, 110, 113, 119, 122, 124, 125, 128):
        try:
            say(
                attribute=n,
                name=d.CUdevice_attribute(n).name,
                value=ok(d.cuDeviceGetAttribute(d.CUdevice_attribute(n), dev)),
            )
        except Exception as e:
            say(attribute=n, error=repr(e))
    u = ok(d.cuDeviceGetUuid(dev))
    say(uuid=ctypes.string_at(u.getPtr(), 16).hex(), bytes=repr(u.bytes))
    for root in ("/proc/driver/nvidia/gpus", "/proc/driver/nvidia/capabilities", "/proc/driver/nvidia"):
        say(path=root, entries=os.listdir(root) if os.path.isdir(root) else None)
    for gpu in sorted(os.listdir("/proc/driver/nvidia/gpus")) if os.path.isdir("/proc/driver/nvidia/gpus") else ():
        say(gpu=gpu, information=open(f"/proc/driver/nvidia/gpus/{gpu}/information").read())
    say(
        dev=[n for n in os.listdir("/dev") if "nvidia" in n],
        env={k: v for k, v in os.environ.items() if k.startswith("CUDA")},
    )
    t = time.perf_counter()
    out = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import ctypes; c=ctypes.CDLL('libcuda.so.1'); print(c.cuInit(0))"],
        capture_output=True,
        text=True,
    )
    say(child_cuinit=out.stdout, seconds=time.perf_counter() - t, err=out.stderr[-200:])
    for n in ("cuCtxRecordEvent", "cuDeviceGetUuid_v2", "cuMemcpyBatchAsync", "cuStreamGetDevice"):
        say(binding=n, there=hasattr(d, n))


def readonly() -> None:
    start()
    size = 1 << 21
    h = ok(d.cuMemCreate(size, prop(), 0))
    fd = ok(d.cuMemExportToShareableHandle(h, d.CUmemAllocationHandleType(1), 0))
    h2 = ok(d.cuMemImportFromShareableHandle(fd, d.CUmemAllocationHandleType(1)))
    p = ok(d.cuMemGetAllocationPropertiesFromHandle(h2))
    say(imported_props=dict(type=p.location.type, id=p.location.id, handles=p.requestedHandleTypes))
    for name, handle in (("own", h), ("imported", h2)):
        a = ok(d.cuMemAddressReserve(size, 0, 0, 0))
        ok(d.cuMemMap(a, size, 0, handle, 0))
        say(what=f"set_access READ {name}", rc=rc(d.cuMemSetAccess(a, size, [access(1)], 1)))
        say(what="get_access", value=str(d.cuMemGetAccess(access(1).location, a)))
        say(what="memset through it", rc=rc(d.cuMemsetD8(a, 1, 16)), after=rc(d.cuCtxSynchronize()))
    say(
        what="export of an imported handle",
        rc=rc(d.cuMemExportToShareableHandle(h2, d.CUmemAllocationHandleType(1), 0)),
    )
    a = ok(d.cuMemAddressReserve(2 * size, 0, 0, 0))
    say(what="map more than the allocation", rc=rc(d.cuMemMap(a, 2 * size, 0, h2, 0)))
    say(
        what="import of /dev/null",
        rc=rc(d.cuMemImportFromShareableHandle(os.open("/dev/null", 0), d.CUmemAllocationHandleType(1))),
    )
    say(
        what="import of a memfd",
        rc=rc(d.cuMemImportFromShareableHandle(os.memfd_create("x"), d.CUmemAllocationHandleType(1))),
    )
    say(
        what="import of nvidiactl",
        rc=rc(d.cuMemImportFromShareableHandle(os.open("/dev/nvidiactl", os.O_RDWR), d.CUmemAllocationHandleType(1))),
    )
    fd_ro = os.memfd_create("ro")
    os.ftruncate(fd_ro, 4096)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    at = libc.mmap(None, 4096, 1, 1, fd_ro, 0)
    for flags in (3, 3 | 8, 8):
        r = rc(d.cuMemHostRegister(at, 4096, flags))
        say(what=f"host register of a read-only mapping, flags {flags}", rc=r)
        if r == 0:
            d.cuMemHostUnregister(at)


def timed(f: Any, n: int = 2000) -> float:
    t = time.perf_counter()
    for _ in range(n):
        f()
    return round((time.perf_counter() - t) / n * 1e6, 3)


def streams() -> None:
    dev, ctx = start()
    at, keep = registered()
    dp = int(ok(d.cuMemHostGetDevicePointer(at, 0)))
    say(host=hex(at), device=hex(dp))
    s = ok(d.cuStreamCreate(1))
    for h in (0, 1, 2, s):
        say(
            stream=str(h),
            write=rc(d.cuStreamWriteValue64(h, dp, 1, 0)),
            wait=rc(d.cuStreamWaitValue64(h, dp, 1, 0)),
            q=rc(d.cuStreamQuery(h)),
        )
        say(stream=str(h), capturing=str(d.cuStreamIsCapturing(h)), ctx=str(d.cuStreamGetCtx(h)))
    ok(d.cuCtxSynchronize())
    i = int(s)
    ev = ok(d.cuEventCreate(2))
    say(us="push+pop", t=timed(lambda: (d.cuCtxPushCurrent(ctx), d.cuCtxPopCurrent())))
    say(us="get current", t=timed(lambda: d.cuCtxGetCurrent()))
    say(us="int(get current)", t=timed(lambda: int(d.cuCtxGetCurrent()[1])))
    m = d.CUstreamCaptureMode(RELAXED)
    say(
        us="exchange twice",
        t=timed(lambda: (d.cuThreadExchangeStreamCaptureMode(m), d.cuThreadExchangeStreamCaptureMode(m))),
    )
    say(us="is capturing", t=timed(lambda: d.cuStreamIsCapturing(s)))
    say(us="write, CUstream", t=timed(lambda: d.cuStreamWriteValue64(s, dp, 1, 0), 400))
    ok(d.cuCtxSynchronize())
    say(us="write, int", t=timed(lambda: d.cuStreamWriteValue64(i, dp, 1, 0), 400))
    ok(d.cuCtxSynchronize())
    say(us="wait", t=timed(lambda: d.cuStreamWaitValue64(s, dp, 1, 0), 400))
    ok(d.cuCtxSynchronize())
    say(us="record", t=timed(lambda: d.cuEventRecord(ev, s), 400))
    say(us="event query", t=timed(lambda: d.cuEventQuery(ev), 400))
    say(us="stream query", t=timed(lambda: d.cuStreamQuery(s), 400))
    other: list[Any] = []

    def bare() -> None:
        other.append(
            dict(
                write=rc(d.cuStreamWriteValue64(s, dp, 2, 0)),
                query=rc(d.cuStreamQuery(s)),
                record=rc(d.cuEventRecord(ev, s)),
                eq=rc(d.cuEventQuery(ev)),
                capt=rc(d.cuStreamIsCapturing(s)),
                cur=str(d.cuCtxGetCurrent()),
            )
        )

    t = threading.Thread(target=bare)
    t.start()
    t.join()
    say(without_context=other)


def under_capture(name: str, f: Any, mode: int, prepare: Any) -> None:
    s = ok(d.cuStreamCreate(1))
    things = prepare()
    ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode(0)))
    got: list[Any] = []

    def work() -> None:
        d.cuCtxPushCurrent(CTX)
        if mode is not None:
            d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode(mode))
        try:
            got.append(f(things))
        except Exception as e:
            got.append(repr(e))
        d.cuCtxPopCurrent()

    t = threading.Thread(target=work)
    t.start()
    t.join(5)
    r = d.cuStreamEndCapture(s)
    say(capture=name, mode=mode, got=got, end=int(r[0]))


CTX: Any = None


def many_ops() -> list[tuple[str, Any, Any]]:
    none = lambda: None  # noqa: E731

    def vmm() -> Any:
        return ok(d.cuMemCreate(1 << 21, prop(), 0))

    def mapped() -> Any:
        h = vmm()
        a = ok(d.cuMemAddressReserve(1 << 21, 0, 0, 0))
        ok(d.cuMemMap(a, 1 << 21, 0, h, 0))
        ok(d.cuMemSetAccess(a, 1 << 21, [access(3)], 1))
        return h, a

    def ev() -> Any:
        return ok(d.cuEventCreate(2)), ok(d.cuStreamCreate(1))

    return [
        ("ctx synchronize", lambda _: rc(d.cuCtxSynchronize()), none),
        ("ctx record event", lambda x: rc(d.cuCtxRecordEvent(CTX, x[0])), ev),
        ("mem alloc", lambda _: rc(d.cuMemAlloc(64)), none),
        ("mem free", lambda x: rc(d.cuMemFree(x)), lambda: ok(d.cuMemAlloc(64))),
        ("managed free", lambda x: rc(d.cuMemFree(x)), lambda: ok(d.cuMemAllocManaged(64, 1))),
        ("vmm create map access", lambda _: str(mapped()), none),
        ("vmm unmap", lambda x: rc(d.cuMemUnmap(x[1], 1 << 21)), mapped),
        ("export fd", lambda x: rc(d.cuMemExportToShareableHandle(x, d.CUmemAllocationHandleType(1), 0)), vmm),
        ("retain", lambda x: rc(d.cuMemRetainAllocationHandle(int(x[1]))), mapped),
        ("host register", lambda x: rc(d.cuMemHostRegister(x[0], 4096, 3)), page),
        ("host unregister", lambda x: rc(d.cuMemHostUnregister(x[0])), registered),
        ("stream create", lambda _: rc(d.cuStreamCreate(1)), none),
        ("stream destroy", lambda x: rc(d.cuStreamDestroy(x[1])), ev),
        ("event create record query", lambda x: (rc(d.cuEventRecord(*x)), rc(d.cuEventQuery(x[0]))), ev),
        ("stream query other", lambda x: rc(d.cuStreamQuery(x[1])), ev),
        ("stream query legacy", lambda x: rc(d.cuStreamQuery(0)), none),
        ("record on legacy", lambda x: rc(d.cuEventRecord(x[0], 0)), ev),
        ("is capturing legacy", lambda x: str(d.cuStreamIsCapturing(0)), none),
        (
            "write value other",
            lambda x: rc(d.cuStreamWriteValue64(x[0], x[1], 1, 0)),
            lambda: (ok(d.cuStreamCreate(1)), int(registered()[0])),
        ),
        ("managed alloc", lambda _: rc(d.cuMemAllocManaged(4096, 1)), none),
    ]


def capture() -> None:
    global CTX
    _, CTX = start()
    for mode in (RELAXED, None):
        for name, f, prepare in many_ops():
            try:
                under_capture(name, f, mode, prepare)
            except Exception as e:
                say(capture=name, mode=mode, failed=repr(e))
    # on the capturing thread itself, exchanged
    for name, f, prepare in many_ops():
        if name.split()[0] in ("mem", "host", "vmm", "event"):
            s = ok(d.cuStreamCreate(1))
            things = prepare()
            ok(d.cuStreamBeginCapture(s, d.CUstreamCaptureMode(0)))
            old = ok(d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode(RELAXED)))
            try:
                got: Any = f(things)
            except Exception as e:
                got = repr(e)
            d.cuThreadExchangeStreamCaptureMode(old)
            say(capture=name, same_thread=True, got=got, end=int(d.cuStreamEndCapture(s)[0]))


def blocking() -> None:
    global CTX
    _, CTX = start()
    at, keep = registered()
    word = ctypes.c_uint64.from_address(at)
    free = ctypes.c_uint64.from_address(at + 64)
    s, s2 = ok(d.cuStreamCreate(1)), ok(d.cuStreamCreate(1))
    for name, f, prepare in many_ops():
        if name.split()[0] in ("export", "retain", "is", "write", "event", "managed"):
            continue
        things, other_page = prepare(), page()[0]
        word.value = free.value = 0
        ok(d.cuStreamWaitValue64(s, at, 1, 0))
        done: dict[str, float] = {}
        t0 = time.perf_counter()

        def run(key: str, g: Any) -> threading.Thread:
            def inner() -> None:
                d.cuCtxPushCurrent(CTX)
                d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode(RELAXED))
                try:
                    done[key + " rc"] = g()
                except Exception as e:
                    done[key + " rc"] = repr(e)  # type: ignore[assignment]
                done[key] = round(time.perf_counter() - t0, 4)
                d.cuCtxPopCurrent()

            t = threading.Thread(target=inner)
            t.start()
            return t

        threads = [run("op", lambda f=f, things=things: f(things))]
        time.sleep(0.1)
        threads.append(run("write other stream", lambda: rc(d.cuStreamWriteValue64(s2, at + 64, 1, 0))))
        time.sleep(0.05)
        landed = free.value
        threads.append(run("stream query", lambda: rc(d.cuStreamQuery(s2))))
        threads.append(run("register", lambda: rc(d.cuMemHostRegister(other_page, 4096, 3))))
        threads.append(run("alloc", lambda: rc(d.cuMemAlloc(64))))
        time.sleep(0.35)
        word.value = 1
        for t in threads:
            t.join(5)
        d.cuCtxSynchronize()
        say(blocking=name, released_at=0.5, done=done, other_landed=landed)


def describe(address: int) -> dict[str, Any]:
    found: dict[str, Any] = {"at": hex(address)}
    for n in (2, 7, 8, 9, 10, 11, 12, 13, 14, 17):
        a = d.CUpointer_attribute(n)
        r = d.cuPointerGetAttribute(a, address)
        v: Any = r[1] if int(r[0]) == 0 else f"error {int(r[0])}"
        try:
            v = v if isinstance(v, str) else int(v)
        except Exception:
            v = str(v)
        found[a.name.removeprefix("CU_POINTER_ATTRIBUTE_")] = hex(v) if isinstance(v, int) and v > 4096 else v
    r = d.cuMemRetainAllocationHandle(address)
    found["retain"] = int(r[0])
    if not int(r[0]):
        p = ok(d.cuMemGetAllocationPropertiesFromHandle(r[1]))
        found["props"] = dict(handles=int(p.requestedHandleTypes), location=(int(p.location.type), p.location.id))
        d.cuMemRelease(r[1])
    return found


def allocators() -> None:
    which = sys.argv[3] if len(sys.argv) > 3 else None
    if which is None:
        for name, env in (
            ("torch", {}),
            (
                "torch",
                {
                    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
                    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                },
            ),
            (
                "torch",
                {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
            ),
            ("cupy", {}),
            ("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.2"}),
            ("raw", {}),
        ):
            out = subprocess.run(
                [sys.executable, "-m", "benchmarks.gpu.probe", "--in", "allocators", name],
                env={**os.environ, **env},
                capture_output=True,
                text=True,
                timeout=90,
            )
            say(allocator=name, env=env)
            print(out.stdout, out.stderr[-400:], flush=True)
        return
    if which == "torch":
        import torch

        x = torch.ones(25 << 20, dtype=torch.float32, device="cuda")
        y = torch.ones(4, device="cuda")
        start(False)
        say(big=describe(x.data_ptr()), far=describe(x.data_ptr() + (90 << 20)), small=describe(y.data_ptr()))
        p = torch.empty(1024, pin_memory=True)
        say(pinned=describe(p.data_ptr()))
        say(stream=torch.cuda.current_stream().cuda_stream, proto=hasattr(torch.cuda.Stream(), "__cuda_stream__"))
    if which == "cupy":
        import cupy

        x = cupy.ones(1 << 20)
        start(False)
        say(
            cupy=describe(x.data.ptr),
            proto=str(cupy.cuda.Stream(non_blocking=True).__cuda_stream__())
            if hasattr(cupy.cuda.Stream, "__cuda_stream__")
            else None,
            null=dict(ptr=cupy.cuda.Stream.null.ptr, device=getattr(cupy.cuda.Stream.null, "device_id", "?")),
        )
        say(numpy=describe(cupy.asnumpy(x).ctypes.data))
    if which == "jax":
        import jax.numpy as jnp

        x = jnp.ones(1 << 20)
        x.block_until_ready()
        start(False)
        say(jax=describe(x.unsafe_buffer_pointer()))
    if which == "raw":
        start()
        say(managed=describe(int(ok(d.cuMemAllocManaged(4096, 1)))))
        say(hostalloc=describe(int(ok(d.cuMemHostAlloc(4096, 3)))))
        at, keep = registered()
        say(registered=describe(at))
        p = prop()
        h = [ok(d.cuMemCreate(1 << 21, p, 0)) for _ in range(3)]
        a = int(ok(d.cuMemAddressReserve(8 << 21, 0, 0, 0)))
        for i in range(3):
            ok(d.cuMemMap(a + (i << 21), 1 << 21, 0, h[i], 0))
        ok(d.cuMemSetAccess(a, 3 << 21, [access(3)], 1))
        say(vmm=describe(a + 100), second=describe(a + (1 << 21)), unmapped=describe(a + (3 << 21)))


def demand() -> None:
    start()
    h = ok(d.cuMemCreate(1 << 21, prop(), 0))
    r = d.cuGetProcAddress(b"cuMemExportToShareableHandle", 10020, 0)
    say(proc=str(r))
    function = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_uint64, ctypes.c_int64, ctypes.c_uint64
    )(int(r[1]))
    got: list[Any] = []

    def bare() -> None:
        fd = ctypes.c_int(-1)
        got.append(
            (
                function(ctypes.byref(fd), int(h), 1, 0),
                fd.value,
                os.readlink(f"/proc/self/fd/{fd.value}") if fd.value >= 0 else None,
                os.get_inheritable(fd.value) if fd.value >= 0 else None,
            )
        )

    t = threading.Thread(target=bare)
    t.start()
    t.join()
    say(on_demand=got)


def exit() -> None:
    code = """
import sys, os; sys.path.insert(0, {here!r})
from benchmarks.gpu import probe as p
p.start()
at, keep = p.registered()
s = p.ok(p.d.cuStreamCreate(1))
p.ok(p.d.cuStreamWaitValue64(s, at, 1, 0))
if {release}:
    p.say(release=p.rc(p.d.cuDevicePrimaryCtxRelease(p.ok(p.d.cuDeviceGet(0)))))
if {destroy}:
    p.say(destroy=p.rc(p.d.cuStreamDestroy(s)))
p.say(exiting=True)
"""
    for release, destroy in ((False, False), (True, False), (False, True)):
        t = time.perf_counter()
        try:
            out = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    code.format(here=os.getcwd(), release=release, destroy=destroy),
                ],
                capture_output=True,
                text=True,
                timeout=15,
            )
            say(
                exit=dict(release=release, destroy=destroy),
                rc=out.returncode,
                seconds=time.perf_counter() - t,
                out=out.stdout + out.stderr[-300:],
            )
        except subprocess.TimeoutExpired as e:
            say(exit=dict(release=release, destroy=destroy), hung=True, out=str(e.stdout))


def sticky() -> None:
    import cupy

    _, ctx = start()
    pulse = ok(d.cuStreamCreate(1))
    ev = ok(d.cuEventCreate(2))
    ok(d.cuEventRecord(ev, pulse))
    ok(d.cuCtxSynchronize())
    at, keep = registered()
    h = ok(d.cuMemCreate(1 << 21, prop(), 0))
    a = ok(d.cuMemAddressReserve(1 << 21, 0, 0, 0))
    ok(d.cuMemMap(a, 1 << 21, 0, h, 0))
    ok(d.cuMemSetAccess(a, 1 << 21, [access(3)], 1))
    fd = ok(d.cuMemExportToShareableHandle(h, d.CUmemAllocationHandleType(1), 0))
    work = ok(d.cuStreamCreate(1))
    k = cupy.RawKernel('extern "C" __global__ void f(int *p) { *p = 1; }', "f")
    with cupy.cuda.ExternalStream(int(work)):
        k((1,), (1,), (cupy.uint64(16),))
    time.sleep(0.5)
    say(
        sticky=dict(
            pulse=rc(d.cuStreamQuery(pulse)),
            event=rc(d.cuEventQuery(ev)),
            again=rc(d.cuStreamQuery(pulse)),
            current=rc(d.cuCtxGetCurrent()),
            push=rc(d.cuCtxPushCurrent(ctx)),
            pop=rc(d.cuCtxPopCurrent()),
            exchange=rc(d.cuThreadExchangeStreamCaptureMode(d.CUstreamCaptureMode(2))),
            write=rc(d.cuStreamWriteValue64(pulse, at, 1, 0)),
            create=rc(d.cuMemCreate(1 << 21, prop(), 0)),
            export=rc(d.cuMemExportToShareableHandle(h, d.CUmemAllocationHandleType(1), 0)),
            unmap=rc(d.cuMemUnmap(a, 1 << 21)),
            address=rc(d.cuMemAddressFree(a, 1 << 21)),
            release=rc(d.cuMemRelease(h)),
            unregister=rc(d.cuMemHostUnregister(at)),
            evd=rc(d.cuEventDestroy(ev)),
            sd=rc(d.cuStreamDestroy(pulse)),
            ctxrel=rc(d.cuDevicePrimaryCtxRelease(ok(d.cuDeviceGet(0)))),
        )
    )


def pool() -> None:
    start()
    p = d.CUmemPoolProps()
    p.allocType = d.CUmemAllocationType(1)
    p.handleTypes = d.CUmemAllocationHandleType(1)
    p.location.type = d.CUmemLocationType(1)
    p.location.id = 0
    pl = ok(d.cuMemPoolCreate(p))
    s = ok(d.cuStreamCreate(1))
    ptr = ok(d.cuMemAllocFromPoolAsync(1 << 20, pl, s))
    second = ok(d.cuMemAllocFromPoolAsync(1 << 20, pl, s))
    ok(d.cuMemsetD8Async(second, 42, 1 << 20, s))
    ok(d.cuStreamSynchronize(s))
    say(pool=describe(int(second) + 5), first=describe(int(ptr)))
    found = d.cuPointerGetAttribute(d.CUpointer_attribute(17), int(second))
    say(same_pool=int(found[1]) == int(pl))
    fd = ok(d.cuMemPoolExportToShareableHandle(found[1], d.CUmemAllocationHandleType(1), 0))
    data = ok(d.cuMemPoolExportPointer(second))
    raw = ctypes.string_at(data.getPtr(), 64)
    say(export_inner=rc(d.cuMemPoolExportPointer(int(second) + 512)))
    code = """
import sys, os, ctypes; sys.path.insert(0, {here!r})
from benchmarks.gpu import probe as p
dev, ctx = p.start(); d = p.d
pools = [p.ok(d.cuMemPoolImportFromShareableHandle({fd}, d.CUmemAllocationHandleType(1), 0)) for _ in range(2)]
data = d.CUmemPoolPtrExportData(); ctypes.memmove(data.getPtr(), bytes.fromhex({raw!r}), 64)
for pl in pools:
    r = d.cuMemPoolImportPointer(pl, data)
    p.say(imported=str(r), set_access=p.rc(d.cuMemPoolSetAccess(pl, [p.access(3)], 1)))
    buf = (ctypes.c_char * 4)()
    p.say(copy=p.rc(d.cuMemcpyDtoH(ctypes.addressof(buf), r[1], 4)), got=bytes(buf).hex(), at=p.describe(int(r[1])))
p.say(free=p.rc(d.cuMemFree(r[1])), destroy=[p.rc(d.cuMemPoolDestroy(x)) for x in pools])
"""
    out = subprocess.run(
        [sys.executable, "-c", code.format(here=os.getcwd(), fd=fd, raw=raw.hex())],
        capture_output=True,
        text=True,
        timeout=30,
        pass_fds=[fd],
    )
    print(out.stdout, out.stderr[-800:], flush=True)


def register() -> None:
    start()
    for nbytes in (4096, 65536, 1 << 21, 1 << 23):
        address, m = page(nbytes)
        t = time.perf_counter()
        ok(d.cuMemHostRegister(address, nbytes, 3))
        t2 = time.perf_counter()
        say(
            register=nbytes,
            us=round((t2 - t) * 1e6),
            device=hex(int(ok(d.cuMemHostGetDevicePointer(address, 0)))),
            host=hex(address),
        )
    t = time.perf_counter()
    pre = ok(d.cuMemAlloc(1))
    d.cuMemFree(pre)
    say(alloc_free_us=round((time.perf_counter() - t) * 1e6, 1))
    say(us="alloc+free", t=timed(lambda: d.cuMemFree(d.cuMemAlloc(1)[1]), 200))
    c = d.cuMemcpyAsync(address, address + 100, 8, 0)
    say(
        host_to_host=rc(c),
        memset_on_registered=rc(d.cuMemsetD8Async(address, 7, 100, 0)),
        sync=rc(d.cuCtxSynchronize()),
    )


def channels() -> None:
    """Which other streams stand still while some wait for a word that nobody has written: they share a hardware channel."""
    start()
    address, page_ = registered()
    memory = int(ok(d.cuMemAlloc(1 << 20)))
    for waiting in (1, 2, 4, 7, 8, 9, 12, 16):
        ctypes.memset(address, 0, 4096)
        earlier = [ok(d.cuStreamCreate(1)) for _ in range(4)]
        blocked = [ok(d.cuStreamCreate(1)) for _ in range(waiting)]
        later = [ok(d.cuStreamCreate(1)) for _ in range(40)]
        for number, stream in enumerate(blocked):
            ok(d.cuStreamWaitValue64(stream, address + 8 * number, 1, 0))
            ok(d.cuMemsetD8Async(memory + number, 1, 1, stream))
        runs = {}
        for name, operation in (
            ("word", lambda stream: ok(d.cuStreamWriteValue64(stream, address + 2048, 7, 0))),
            ("memset", lambda stream: ok(d.cuMemsetD8Async(memory + 4096, 1, 4096, stream))),
            ("copy", lambda stream: ok(d.cuMemcpyAsync(memory + 65536, memory + 8192, 4096, stream))),
        ):
            for group, streams in (("earlier", earlier), ("later", later)):
                for stream in streams:
                    operation(stream)
                time.sleep(0.05)
                still = [number for number, stream in enumerate(streams) if rc(d.cuStreamQuery(stream)) == 600]
                runs[f"{name} {group}"] = f"{len(still)} of {len(streams)} stand still: {still[:12]}"
        # Release the newest first: does each go on alone?
        alone = []
        for number in reversed(range(waiting)):
            ctypes.c_uint64.from_address(address + 8 * number).value = 1
            time.sleep(0.02)
            alone.append(rc(d.cuStreamQuery(blocked[number])) == 0)
        ok(d.cuCtxSynchronize())
        say(waiting=waiting, **runs, released_newest_first_each_went_on=f"{sum(alone)} of {waiting}: {alone}")
        for stream in (*earlier, *blocked, *later):
            ok(d.cuStreamDestroy(stream))


def fabric() -> None:
    """Allocations with a fabric handle, and what is there of what they need."""
    dev, _ctx = start()
    say(attribute=128, fabric=ok(d.cuDeviceGetAttribute(d.CUdevice_attribute(128), dev)))
    say(channels=[str(path) for path in Path("/dev/nvidia-caps-imex-channels").glob("*")])
    for types in (1, 8, 9):
        p = prop()
        ctypes.c_int.from_address(int(p.getPtr()) + 4).value = types  # the enumeration has no combinations
        say(types=types, granularity=str(d.cuMemGetAllocationGranularity(p, d.CUmemAllocationGranularity_flags(0))))
        made = d.cuMemCreate(1 << 21, p, 0)
        say(types=types, create=rc(made))
        if not rc(made):
            for kind in (1, 8):
                out = d.cuMemExportToShareableHandle(made[1], d.CUmemAllocationHandleType(kind), 0)
                say(types=types, exported_as=kind, code=rc(out), kind=type(out[1]).__name__)


def dma_buf() -> None:
    """Which memory the driver gives a dma-buf of, and what can be done with that."""
    dev, _ctx = start()
    say(attribute=124, dma_buf=ok(d.cuDeviceGetAttribute(d.CUdevice_attribute(124), dev)))
    say(udmabuf=os.path.exists("/dev/udmabuf"), heaps=os.path.exists("/dev/dma_heap"))
    kind = d.CUmemRangeHandleType(1)

    def one(what: str, address: int, nbytes: int, flags: int = 0) -> None:
        got = d.cuMemGetHandleForAddressRange(address, nbytes, kind, flags)
        say(of=what, nbytes=nbytes, flags=flags, code=rc(got), value=str(got[1]))
        if rc(got):
            return
        fd = int(got[1])
        say(of=what, link=os.readlink(f"/proc/self/fd/{fd}"), size=os.lseek(fd, 0, os.SEEK_END),
            inheritable=os.get_inheritable(fd))  # fmt: skip
        try:
            mmap.mmap(fd, 4096).close()
            say(of=what, mmap="works")
        except OSError as error:
            say(of=what, mmap=str(error))
        again = d.cuMemGetHandleForAddressRange(address, nbytes, kind, flags)
        say(of=what, again=rc(again), same=os.fstat(fd).st_ino == os.fstat(int(again[1])).st_ino)
        for number in (1, 9, 11):  # opaque fd, timeline, dma-buf
            try:
                wanted = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()
                wanted.type = d.CUexternalMemoryHandleType(number)
                wanted.handle.fd = os.dup(fd)
                wanted.size = nbytes
                say(of=what, imported_as=number, code=rc(d.cuImportExternalMemory(wanted)))
            except Exception as error:
                say(of=what, imported_as=number, error=repr(error))
        imported = d.cuMemImportFromShareableHandle(fd, d.CUmemAllocationHandleType(1))
        say(of=what, imported_as="VMM fd", code=rc(imported))

    plain = int(ok(d.cuMemAlloc(1 << 21)))
    for nbytes in (1 << 21, 1 << 16, 4096, 100):
        one("cudaMalloc", plain, nbytes)
    one("cudaMalloc + 4096", plain + 4096, 4096)
    one("cudaMalloc + 100", plain + 100, 4096)
    one("cudaMalloc", plain, 1 << 21, 1)  # over PCIe
    small = int(ok(d.cuMemAlloc(1000)))
    one(f"small cudaMalloc at {small % 4096} of its page", small // 4096 * 4096, 4096)
    handle = ok(d.cuMemCreate(1 << 22, prop(), 0))
    at = int(ok(d.cuMemAddressReserve(1 << 22, 0, 0, 0)))
    ok(d.cuMemMap(at, 1 << 22, 0, handle, 0))
    ok(d.cuMemSetAccess(at, 1 << 22, [access(3)], 1))
    one("VMM", at, 1 << 22)
    one("VMM + 4096", at + 4096, 8192)
    fd = ok(d.cuMemExportToShareableHandle(handle, d.CUmemAllocationHandleType(1), 0))
    imported = ok(d.cuMemImportFromShareableHandle(int(fd), d.CUmemAllocationHandleType(1)))
    place = int(ok(d.cuMemAddressReserve(1 << 22, 0, 0, 0)))
    ok(d.cuMemMap(place, 1 << 22, 0, imported, 0))
    ok(d.cuMemSetAccess(place, 1 << 22, [access(3)], 1))
    one("VMM, imported", place, 1 << 22)
    host, _m = registered(1 << 16)
    one("registered host memory", host, 1 << 16)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in"]:
        globals()[sys.argv[2]]()
    else:
        for section in sys.argv[1:] or SECTIONS:
            print(f"== {section}", flush=True)
            began = time.perf_counter()
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.gpu.probe", "--in", section],
                    timeout=100,
                    capture_output=True,
                    text=True,
                )
                print(done.stdout, done.stderr[-1500:], f"rc {done.returncode}", end=" ", flush=True)
            except subprocess.TimeoutExpired as error:
                print((error.stdout or b"").decode(), "TIMED OUT", flush=True)
            print(f"{time.perf_counter() - began:.1f} s", flush=True)
