"""The vendors' records: found by folder and by entry point, read without a driver."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import xpushare as xs
from sampling import sampled
from xpushare import adapters, ur
from xpushare.adapters.vendor import UR_BACKENDS, Vendor

PACKAGE = Path(xs.__file__).parent

# An adapter in a package of its own: mock's devices under another name, and SYCL's array interface.
ACME = """
from xpushare.adapters.vendor import ArrayInterface, DLPackType, Vendor


def make():
    from acme_driver import Acme

    return Acme()


vendor = Vendor(
    backend="acme",
    make=make,
    variables=("ACME_VISIBLE_DEVICES",),
    install="install acme",
    modules=("acme_driver",),
    torch_type="acme",
    dlpack=(
        DLPackType(12, kinds=("device", "host", "shared"), stream=0),
        DLPackType(9, address=False),
    ),
    interfaces=(ArrayInterface("__sycl_usm_array_interface__", layout="sycl_usm"),),
)
"""
DRIVER = """
from xpushare.adapters.mock import Mock


class Acme(Mock):
    backend = "acme"

    def stream(self, device, number, array):
        return None

    def knows(self, address):
        return True  # its devices use all memory of the host
"""


def install(folder: Path, name: str, modules: dict[str, str], entry_points: str) -> None:
    """A package as pip would leave it in `folder`."""
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[xpushare.adapters]\n{entry_points}\n")


@pytest.fixture
def acme(tmp_path: Path) -> Path:
    install(tmp_path, "acme", {"acme": ACME, "acme_driver": DRIVER}, "acme = acme:vendor")
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A Python that finds the packages of `folder`."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def python(folder: Path, source: str, **environment: str) -> str:
    """What a program prints; it fails where the program does."""
    done = run(folder, "-c", source, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


# --- the package's own


def test_every_folder_with_a_record_is_found() -> None:
    folders = {path.parent.name for path in (PACKAGE / "adapters").glob("*/vendor.py")}
    found = [record.backend for record in adapters.vendors() if record.backend in folders]
    assert set(found) == folders
    assert found.index("cuda") < found.index("native_cpu") < found.index("mock")
    for name in folders:
        record = adapters.record(name)
        assert record is not None
        assert (record.backend, record.order > 0) == (name, True)
    assert adapters.record("stream") is None  # what vendors share is not a vendor


def test_a_new_folder_is_all_that_it_takes(tmp_path: Path) -> None:
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "vendor.py").write_text(ACME.replace("acme_driver import", "xpushare.adapters.acme.driver import"))
    (folder / "driver.py").write_text(DRIVER)
    (tmp_path / "no_vendor").mkdir()
    (tmp_path / "no_vendor" / "__init__.py").write_text("raise AssertionError('nobody has to import this')")
    source = f"""
import xpushare as xs
from xpushare import adapters
adapters.__path__.append({str(tmp_path)!r})
assert [str(each) for each in xs.devices()][-3:] == ["acme:0", "acme:1", "native_cpu:0"], xs.devices()
with xs.malloc_device(64, "acme:1") as memory, xs.ipc.memory.open(xs.ipc.memory.get(memory)) as opened:
    assert opened.__dlpack_device__() == (12, 1)
    assert opened.__sycl_usm_array_interface__["syclobj"] == "acme:accelerator:1"
"""
    assert python(Path("/nowhere"), source) == ""


def test_records_load_no_driver_and_no_binding() -> None:
    source = """
import sys
class Refuse:
    def find_spec(self, name, *rest):
        assert name.partition(".")[0] not in ("cuda", "numpy", "torch"), name
sys.meta_path.insert(0, Refuse())
from xpushare import adapters
records = adapters.vendors()
assert not adapters.loaded()
assert not adapters.record("cuda").in_use()
print("libcuda" in open("/proc/self/maps").read(), len(records) >= 3)
"""
    assert python(Path("/nowhere"), source).split() == ["False", "True"]


def test_the_import_looks_for_nothing() -> None:
    """Not for records, and not for other packages where the backend's name says enough."""
    source = """
import sys
import xpushare as xs
xs.Memory, xs.Event, xs.ipc.memory.open
assert not [name for name in sys.modules if name.startswith("xpushare.adapters.") and name.endswith(".vendor")
            and name != "xpushare.adapters.vendor"]
assert "pkgutil" not in sys.modules
with xs.malloc_device(16, "native_cpu:0") as memory:
    xs.ipc.memory.get(memory)
    memory.as_array(16, "uint8").__array_interface__
assert "importlib.metadata" not in sys.modules
assert "xpushare.adapters.mock" not in sys.modules
"""
    assert python(Path("/nowhere"), source) == ""


def test_a_record_says_the_dlpack_type_that_its_memory_bears() -> None:
    for name in ("native_cpu:0", "mock:0", "cuda:0"):
        try:
            device = xs.Device(name)
        except xs.InvalidArgumentError:
            continue
        record = adapters.record(device.backend)
        assert record is not None
        for make, kind in ((xs.malloc_device, "device"), (xs.malloc_host, "host"), (xs.malloc_shared, "shared")):
            with make(64, device) as memory:
                assert memory.__dlpack_device__()[0] == record.dlpack_type(kind)  # type: ignore[arg-type]


def test_selectors_take_the_names_of_unified_runtime() -> None:
    assert {name.lower() for name in ur.Backend.__members__} - {"unknown"} == UR_BACKENDS
    for name in UR_BACKENDS:
        xs.devices(f"{name}:*")
    with pytest.raises(xs.InvalidArgumentError, match="no backend 'acme'"):
        xs.devices("acme:*")


@pytest.mark.parametrize("name", ["", "Acme", "a" * 17, "9acme", "ac-me", "ac:me", "*"])
def test_names_of_backends(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        Vendor(backend=name, make=lambda: adapters.adapter("mock"))


# --- from other packages


def test_an_adapter_of_another_package(acme: Path) -> None:
    source = """
import sys
import xpushare as xs
assert "acme" not in sys.modules
assert [str(each) for each in xs.devices()][-3:] == ["acme:0", "acme:1", "native_cpu:0"], xs.devices()
assert list(map(str, xs.devices("acme:1;native_cpu:*"))) == ["acme:1", "native_cpu:0"]
assert list(map(str, xs.devices("*:*;!acme:0"))) [-2:] == ["acme:1", "native_cpu:0"]
assert xs.Device("acme:1") == xs.Device(xs.Device("acme:1").uuid)
with xs.malloc_device(64, "acme:1") as memory:
    memoryview(memory)[:3] = b"abc"
    handle = xs.ipc.memory.get(memory)
    assert (handle.backend, memory.__dlpack_device__()) == ("acme", (12, 1))
    with xs.ipc.memory.open(str(handle)) as opened:
        assert bytes(memoryview(opened)[:3]) == b"abc"
"""
    assert python(acme, source) == ""
    for name in ("acme:0", "acme"):
        source = f"import xpushare as xs, sys; print(xs.Device({name!r}), 'importlib.metadata' in sys.modules)"
        assert python(acme, source).split() == ["acme:0", "True"]


def test_the_records_module_is_as_good(tmp_path: Path) -> None:
    install(tmp_path, "acme", {"acme": ACME, "acme_driver": DRIVER}, "acme = acme")
    assert python(tmp_path, "import xpushare as xs; print(xs.Device('acme:1'))") == "acme:1\n"


def test_it_is_lazy(acme: Path) -> None:
    source = """
import sys
import xpushare as xs
from xpushare import adapters
xs.devices("native_cpu:*")
assert "acme" not in sys.modules
adapters.vendors()
assert "acme" in sys.modules and "acme_driver" not in sys.modules
xs.devices("acme:*")
assert "acme_driver" in sys.modules
"""
    assert python(acme, source) == ""


def test_selectors_of_the_environment(acme: Path) -> None:
    source = "import xpushare as xs; print(*xs.devices(), xs.default_device())"
    assert python(acme, source, ONEAPI_DEVICE_SELECTOR="acme:1").split() == ["acme:1", "acme:1"]


def test_the_commands(acme: Path) -> None:
    done = run(acme, "-m", "xpushare", "info", "--json", ACME_VISIBLE_DEVICES="0,1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"acme:0", "acme:1"} < {each["device"] for each in found["devices"]}
    assert found["environment"]["ACME_VISIBLE_DEVICES"] == "0,1"
    done = run(acme, "-m", "xpushare", "demo", "--device", "acme:0")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_handle_where_the_adapter_is_missing(acme: Path) -> None:
    source = "import xpushare as xs\nm = xs.malloc_device(8, 'acme:0')\nprint(xs.ipc.memory.get(m)); input()"
    path = os.pathsep.join([str(acme), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        handle = child.stdout.readline().strip()
        with pytest.raises(xs.InvalidArgumentError, match="'acme', for which no adapter is installed"):
            xs.ipc.memory.open(handle, device=None)
        child.communicate("\n", timeout=20)


def test_unified_runtimes_face_knows_it_by_no_name(acme: Path) -> None:
    source = """
import xpushare as xs
from xpushare import ur
adapters = ur.urAdapterGet()
backends = [ur.urAdapterGetInfo(each, ur.AdapterInfo.BACKEND) for each in adapters]
assert ur.Backend.UNKNOWN in backends and ur.Backend.NATIVE_CPU in backends, backends
"""
    assert python(acme, source) == ""


BROKEN = {
    "raises": ("raise RuntimeError('no such chip')", "broken = broken:vendor", "RuntimeError: no such chip"),
    "missing": ("", "broken = nowhere:vendor", "No module named 'nowhere'"),
    "nothing": ("", "broken = broken:vendor", "AttributeError"),
    "no record": ("vendor = 3", "broken = broken:vendor", "is not an xpushare.adapters.vendor.Vendor"),
    "empty module": ("", "broken = broken", "is not an xpushare.adapters.vendor.Vendor"),
    "name": (ACME, "broken = broken:vendor", "is for backend 'acme'"),
    "wrong name": (ACME.replace('"acme"', '"Acme!"', 1), "broken = broken:vendor", "ValueError"),
    "own name": (ACME, "native_cpu = broken:vendor", "another adapter of that name"),
    "make": (ACME.replace("acme", "broken"), "broken = broken:vendor", "cannot be started (ModuleNotFoundError"),
    "devices": (
        ACME.replace("acme", "broken") + "\nfrom xpushare.adapters.mock import Mock\n"
        "class Bad(Mock):\n    def devices(self):\n        raise KeyError('x')\n"
        "import dataclasses\nvendor = dataclasses.replace(vendor, make=Bad)\n",
        "broken = broken:vendor",
        "cannot list its devices (KeyError",
    ),
}
SHORT = ("raises", "devices")  # before it is started, and after


@pytest.mark.parametrize("case", sampled(BROKEN, SHORT))
def test_a_broken_adapter_is_reported(case: str, tmp_path: Path) -> None:
    module, entry, text = BROKEN[case]
    install(tmp_path, "broken-package", {"broken": module}, entry)
    source = """
import logging
logging.basicConfig(format="%(levelname)s %(message)s")
import xpushare as xs
for _ in range(2):
    assert [str(each) for each in xs.devices()][-1] == "native_cpu:0"
"""
    said = python(tmp_path, source)
    assert said.count("WARNING adapter") == 1
    assert text in said
    done = run(tmp_path, "-m", "xpushare", "doctor", "--json", "--device", "native_cpu:*")
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = [each for each in json.loads(done.stdout)["checks"] if each["name"].startswith("adapter ")]
    assert (check["group"], check["state"], text in check["why"]) == ("devices", "limited", True)
    assert check["fix"]
    done = run(tmp_path, "-m", "xpushare", "info")
    assert done.returncode == 0
    if case in ("make", "devices"):
        assert "broken: no device: it cannot" in done.stdout


def test_two_of_a_name(acme: Path) -> None:
    install(acme, "zcopy", {"zcopy": ACME}, "acme = zcopy:vendor")
    source = """
import logging, sys
logging.basicConfig()
import xpushare as xs
assert len(xs.devices("acme:*")) == 2
assert ("acme" in sys.modules) != ("zcopy" in sys.modules)
"""
    said = python(acme, source)
    assert said.count("another adapter of that name") == 1


@pytest.mark.parametrize("where", ["nowhere", "other group", "dist-info", "egg-info", "egg", "archive", "finder"])
def test_entry_points_are_read_where_there_may_be_some(tmp_path: Path, where: str) -> None:
    """Without need `importlib.metadata`, which is slow to import, is left alone."""
    folder = tmp_path / ("acme.egg" if where == "egg" else "packages")
    folder.mkdir()
    install(folder, "acme", {}, "acme = acme:vendor")
    facts = folder / "acme-1.0.dist-info"
    if where == "egg":
        facts.rename(folder / "EGG-INFO")
    elif where == "egg-info":
        facts.rename(folder / "acme-1.0.egg-info")
    elif where == "other group":
        (facts / "entry_points.txt").write_text("[console_scripts]\nacme = acme:main\n")
    elif where == "archive":
        folder = Path(shutil.make_archive(str(folder), "zip", folder))
    elif where != "dist-info":
        folder = tmp_path / "nowhere"
    source = f"""
import sys
from xpushare import adapters

class Finder:
    def find_spec(self, *_arguments):
        return None
    def find_distributions(self, *_arguments):
        return iter(())

if {where == "finder"}:
    sys.meta_path.append(Finder())
sys.modules.pop("importlib.metadata", None)
library = [each for each in sys.path if each.startswith(sys.base_prefix) and "-packages" not in each]
sys.path[:] = [{str(folder)!r}, *library]
adapters.record("nobody")
print("importlib.metadata" in sys.modules, *(each.name for each in adapters.problems()))
"""
    read = {"nowhere": "False", "other group": "False", "finder": "True"}.get(where, "True acme")
    assert python(tmp_path / "nobody", source).splitlines()[0] == read  # the log comes behind


# --- arrays of such a vendor


def test_sycls_array_interface(acme: Path) -> None:
    source = """
import numpy as np
import xpushare as xs
from xpushare.adapters.mock import ForeignArray

with xs.malloc_device(64, "acme:1") as memory:
    found = memory.__sycl_usm_array_interface__
    assert found == {"data": (memory.ptr, False), "shape": (64,), "typestr": "|u1", "strides": (1,), "offset": 0,
                     "version": 1, "syclobj": "acme:accelerator:1"}, found
    found = memory.as_array((2, 4), "float32", 16).__sycl_usm_array_interface__
    assert (found["data"], found["strides"]) == ((memory.ptr + 16, False), (4, 1)), found
    assert "stream" not in found
    assert not hasattr(memory, "__cuda_array_interface__")
    record = memory.as_array(2, [("a", "u1"), ("b", "f8")])
    assert not hasattr(record, "__sycl_usm_array_interface__")
with xs.malloc_device(64, "native_cpu:0") as memory:
    assert not hasattr(memory, "__sycl_usm_array_interface__")
    assert not hasattr(memory.as_array(4, "u1"), "__sycl_usm_array_interface__")
    assert hasattr(memory, "__array_interface__")


class Usm:
    def __init__(self, **more):
        self.memory = ForeignArray(4096)
        self.values = np.asarray(self.memory)
        self.values[:] = np.arange(4096) % 251
        self.interface = {"data": (self.memory.memory.address, False), "shape": (4,), "typestr": "<i2",
                          "strides": None, "offset": 0, "version": 1, "syclobj": "acme:accelerator:0", **more}

    @property
    def __sycl_usm_array_interface__(self):
        return self.interface


for more, expected in (
    ({}, lambda values: values[:4]),
    ({"offset": 8}, lambda values: values[8:12]),
    ({"offset": 8, "strides": (3,)}, lambda values: values[8:20:3]),
    ({"offset": 8, "strides": (-2,)}, lambda values: values[8:0:-2]),
    ({"shape": (2, 3), "strides": (1, 4)}, lambda values: values[:12].reshape(3, 4)[:, :2].T),
):
    array = Usm(**more)
    wanted = expected(array.values.view("<i2"))
    for copy in (False, True):
        if copy and more.get("strides") not in (None,):
            continue
        with xs.share(array, copy=copy) as handle:
            attached = xs.attach(handle)
            assert str(attached.device) == "acme:0"
            assert np.array_equal(np.asarray(attached), wanted), (more, np.asarray(attached), wanted)
            if not copy:
                array.values[:] += 1
                assert np.array_equal(np.asarray(attached), wanted)
"""
    assert python(acme, source) == ""


def test_its_dlpack_types(acme: Path) -> None:
    source = """
import numpy as np
import xpushare as xs
from xpushare import _native

class Of:
    def __init__(self, number):
        self.values, self.number = np.arange(16, dtype="u1"), number
    def __dlpack_device__(self):
        return self.number, 1
    def __dlpack__(self, stream="none", **_options):
        assert stream in (0, -1), stream
        return _native.dlpack_capsule(self, self.values.ctypes.data, (self.number, 1), (1, 8, 1), (16,), (1,), False,
                                      False)

with xs.share(Of(12), copy=True) as handle:
    attached = xs.attach(handle)
    assert str(attached.device) == "acme:1"
    assert np.array_equal(np.asarray(attached), np.arange(16)), attached
for copy in (False, True):
    try:
        xs.share(Of(9), copy=copy)
    except xs.FeatureNotSupportedError as error:
        assert "type 9 (kDLVPI) is a handle of the driver of acme, not an address" in str(error), error
    else:
        raise AssertionError
try:
    xs.share(Of(8))
except xs.FeatureNotSupportedError as error:
    assert "12 (kDLExtDev, acme)" in str(error) and "kDLVPI" not in str(error), error
else:
    raise AssertionError
"""
    assert python(acme, source) == ""


STREAMS = """
from xpushare.adapters.mock import Mock, MockStream


class AcmeStream:
    def __init__(self, ordinal):
        self.inner = MockStream(ordinal)


class AcmeEvent:
    def __init__(self):
        self.adopted = 0


class Acme(Mock):
    backend = "acme"

    def adopt_queue(self, native):
        native = native.__acme_stream__() if hasattr(native, "__acme_stream__") else native
        return super().adopt_queue(native.inner if isinstance(native, AcmeStream) else native)

    def adopt_event(self, native):
        native.adopted += 1
        return self.devices()[1], native

    def queue(self, device):
        found = super().queue(device)
        found.wait_native = lambda event, keep: None
        return found

    def knows(self, address):
        return True  # its devices use all memory of the host
"""


def test_its_streams_and_events(tmp_path: Path) -> None:
    record = ACME.replace(
        "make=make,",
        """make=make,
    streams="Acme's own, __acme_stream__",
    stream_methods=("__acme_stream__",),
    stream_of=lambda native: native if type(native).__name__ == "AcmeStream" else None,
    event_of=lambda native: native if type(native).__name__ == "AcmeEvent" else None,""",
    )
    install(tmp_path, "acme", {"acme": record, "acme_driver": STREAMS}, "acme = acme:vendor")
    source = """
import numpy as np
import xpushare as xs
from xpushare import _native

try:
    xs.Queue.from_native(object())
except xs.FeatureNotSupportedError as error:
    assert "acme: Acme's own, __acme_stream__" in str(error), error
else:
    raise AssertionError
import sys
assert "acme_driver" not in sys.modules  # nothing was its own

from acme_driver import AcmeEvent, AcmeStream
stream, event = AcmeStream(1), AcmeEvent()
queue = xs.Queue.from_native(stream)
assert str(queue.device) == "acme:1"
with xs.malloc_device(64, "acme:1") as memory:
    queue.fill(memory, b"x")
    queue.synchronize(20)
    assert bytes(memoryview(memory)) == b"x" * 64
assert str(xs.Event.from_native(event).device) == "acme:1" and event.adopted == 1


class Of:
    values, asked = np.arange(16, dtype="u1"), 0
    def __dlpack_device__(self):
        return 12, 1
    def __dlpack__(self, **_options):
        return _native.dlpack_capsule(self, self.values.ctypes.data, (12, 1), (1, 8, 1), (16,), (1,), False, False)
    def __acme_stream__(self):
        self.asked += 1
        return stream

array = Of()
with xs.share(array, copy=True) as handle:
    assert np.array_equal(np.asarray(xs.attach(handle)), array.values)
assert array.asked
"""
    assert python(tmp_path, source) == ""


def test_a_vendor_that_is_not_in_use(tmp_path: Path) -> None:
    unused = ACME.replace("make=make,", "make=make,\n    in_use=lambda: False,")
    install(tmp_path, "acme", {"acme": unused, "acme_driver": DRIVER}, "acme = acme:vendor")
    source = """
import xpushare as xs
class Usm:
    __sycl_usm_array_interface__ = {"data": (4096, False), "shape": (4,), "typestr": "<i2", "version": 1}
for copy in (False, True):
    try:
        xs.share(Usm(), copy=copy)
    except xs.FeatureNotSupportedError as error:
        assert "acme, whose driver this process has not loaded (install acme)" in str(error), error
    else:
        raise AssertionError
"""
    assert python(tmp_path, source) == ""


# --- no tables of vendors anywhere else

VENDORS = re.compile(r"cuda|nvidia|\bhip|rocm|\bamd\b|level_?zero|\blibze|opencl|\bintel\b", re.I)
# What may name vendors, and why.
NAMING = {
    "adapters": "the vendors",
    "ur": "Unified Runtime's own enumerations",
}
# Modules of other libraries that are called so.
THEIRS = {
    "objects/array.py": {"cuda"},  # torch's method, which people try on an array
    "core/device.py": {"'cpu', 'gpu', 'native_cpu:0', 'cuda:0' or a uuid"},
    "integrations/torch.py": {"cuda", "CUDAPluggableAllocator"},
    "integrations/cupy.py": {"cuda"},
    "integrations/lmcache.py": {"CudaDeviceSpec", "CudaIPCData", "cuda", "lmcache.v1.platform.devices.cuda"},
    "integrations/fabric.py": {
        " has no fabric handle: only CUDA memory has one",
        " is not a CUDA device",
        "cuda",
        "cuda:0",
    },
}


def strings_and_names(source: str) -> set[str]:
    """What a module's code says: names and strings, without docstrings and comments."""
    tree = ast.parse(source)
    found: set[str] = set()
    examples: set[str | None] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            examples.add(ast.get_docstring(node, clean=False))
        match node:
            case ast.Constant(value=str(text)):
                found.add(text)
            case ast.Name(id=text) | ast.Attribute(attr=text) | ast.arg(arg=text) | ast.keyword(arg=str(text)):
                found.add(text)
            case ast.FunctionDef(name=text) | ast.ClassDef(name=text) | ast.alias(name=text):
                found.add(text)
            case ast.ImportFrom(module=str(text)):
                found.add(text)
    return found - examples


def test_no_vendor_is_named_outside_the_adapters() -> None:
    named = {}
    for path in PACKAGE.rglob("*.py"):
        inside = path.relative_to(PACKAGE)
        if inside.parts[0] in NAMING:
            continue
        found = sorted(text for text in strings_and_names(path.read_text()) if VENDORS.search(text))
        found = [text for text in found if text not in THEIRS.get(str(inside), ())]
        if found:
            named[str(inside)] = found
    assert not named
    assert any(map(VENDORS.search, strings_and_names((PACKAGE / "adapters" / "cuda" / "vendor.py").read_text())))
