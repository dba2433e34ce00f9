"""What all tests share: a private runtime folder, the end of every child, and a check for leaked file descriptors."""

from __future__ import annotations

import atexit
import functools
import gc
import inspect
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before any test module imports xpushare; children inherit it.
_runtime_dir = tempfile.mkdtemp(prefix="xpushare-tests-")
os.environ["XPUSHARE_RUNTIME_DIR"] = _runtime_dir
os.environ.setdefault("OCL_ICD_VENDORS", "/nowhere")  # OpenCL has devices where its own tests name drivers


@atexit.register  # not a hook of pytest: when another plugin's raises, ours is not called
def _remove_runtime_dir(_owner: int = os.getpid()) -> None:
    if os.getpid() == _owner:
        shutil.rmtree(_runtime_dir, ignore_errors=True)


# A shell's background jobs ignore Ctrl-C, and what they start would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)
for _name in ("XPUSHARE_KEY_FILE", "ONEAPI_DEVICE_SELECTOR", "UR_ENABLE_LAYERS"):
    os.environ.pop(_name, None)

import pytest  # noqa: E402

import harness  # noqa: E402
import xpushare as xs  # noqa: E402
from xpushare import _native  # noqa: E402

if TYPE_CHECKING:
    from xpushare.core.declare import Operation

# Folders in the order in which their files are given to the workers. The native part's tests look at all that a process
# has open, and so come before it has anything of others'. Then the longest files: whatever begins last should be short.
# Last are the tests that import other libraries, as with JAX or Ray in a process every fork takes longer.
FIRST, LAST = ("native", "conformance", "ur_loader", "core"), ("integrations", "arrays")


def pytest_configure(config: pytest.Config) -> None:
    harness.teardown = "not exhaustive" not in config.option.markexpr


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [*FIRST, "", *LAST]
    items.sort(key=lambda item: order.index(name if (name := item.path.parent.name) in order else ""))


@pytest.fixture(scope="session", autouse=True)
def _prepared() -> Iterator[None]:
    """What forks children is there before a test counts what is open."""
    harness.prepare()
    yield
    gc.unfreeze()  # plugins that are loaded at the end ask for referrers


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Spare every `gc.collect` in a test what pytest and the imports hold for good: that is nearly all there is.

    It stays frozen between the files: looking through all of it again takes a quarter of a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _nothing_exported() -> Iterator[None]:
    """What the tests of a file leave exported ends with it, not by time while another file's tests count."""
    yield
    harness.withdraw_all()


@pytest.fixture(autouse=True)
def _no_survivors() -> Iterator[None]:
    """Kill, by pid, the children that a test left behind; such a test fails."""
    yield
    left = list(harness.children)
    for child in left:
        child.kill()
    assert not left, f"the test left {left} running"


@pytest.fixture(scope="session")
def exporting() -> None:
    """Make this process an exporter once: what it opens for good (its table, its warden) is open before a count."""
    import xpushare as xs

    with xs.malloc_device(4096, "native_cpu:0") as memory:
        xs.ipc.memory.put(xs.ipc.memory.get(memory))


@pytest.fixture
def new_slot(domain: _native.Domain) -> Iterator[Callable[[], _native.Slot]]:
    from xpushare._native import Slot

    made: list[Slot] = []

    def new() -> Slot:
        made.append(Slot(domain, domain.new_slot()))
        return made[-1]

    yield new
    for slot in made:
        slot.detach()
        domain.release_slot(slot.index)


_undeclared: set[str] = set()


@functools.cache
def _watched() -> tuple[tuple[Operation, Callable[..., Any]], ...]:
    """Each operation, and the function that notes in `_undeclared` what it raises and does not declare."""
    from xpushare.core.layers import operations

    @contextmanager
    def noting(operation: Operation) -> Iterator[None]:
        try:
            yield
        except (xs.XpuShareError, TimeoutError) as error:
            if not isinstance(error, operation.raises):
                _undeclared.add(f"{operation.name} raised {type(error).__name__}: {error}")
            raise

    def watched(operation: Operation) -> Callable[..., Any]:
        @functools.wraps(operation.function)
        def watch(*arguments: Any, **options: Any) -> Any:
            with noting(operation):
                return operation.function(*arguments, **options)

        @functools.wraps(operation.function)
        async def watch_async(*arguments: Any, **options: Any) -> Any:
            with noting(operation):
                return await operation.function(*arguments, **options)

        return watch_async if inspect.iscoroutinefunction(operation.function) else watch

    return tuple((each, watched(each)) for each in operations())


@pytest.fixture
def declared_errors() -> Iterator[None]:
    """The test fails when an operation raises an error of this package, or a time-out, that it does not declare."""
    from xpushare.core.declare import layers_on

    if layers_on:  # they wrap the operations themselves
        yield
        return
    _undeclared.clear()
    for operation, watch in _watched():
        operation.install(watch)
    yield
    for operation, _watch in _watched():
        operation.install(operation.function)
    assert not _undeclared


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can enter; pytest's own are below folders that only this user can."""
    folder = Path(tempfile.mkdtemp(prefix="xpushare-tests-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def no_fd_leak(exporting: None) -> Iterator[None]:  # noqa: ARG001
    """The test fails when it leaves more file descriptors open in this process than it found."""
    from xpushare.sharing import naming

    def settle() -> None:
        gc.collect()
        xs.trim()
        # Calls with names keep their folder open while it has files of others that they have not looked at.
        naming._round.end()  # pyright: ignore[reportPrivateUsage]

    settle()
    before = harness.open_fds()
    yield
    settle()
    end = time.monotonic() + 10  # the warden closes its ends a moment later
    while len(after := harness.open_fds()) > len(before) and time.monotonic() < end:
        time.sleep(0.02)
    # A descriptor that was replaced (closed and opened anew) is not a leak.
    assert len(after) <= len(before), f"leaked file descriptors: {dict(sorted(after.items() - before.items()))}"
