"""Finds the vendors of devices, such as `cuda`. Each subpackage of this package that has a module `vendor` is a vendor.
Other packages provide vendors by entry points of the group `xpushare.adapters`.

Finding a vendor imports only the vendor's record. The vendor's adapter is made when it is first needed.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Final, NamedTuple

from xpushare.adapters.vendor import DLPACK_NAMES, ArrayInterface, DLPackType, Vendor
from xpushare.common.errors import FeatureNotSupportedError, doing
from xpushare.common.loading import load

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from xpushare.adapters.base import Adapter, DeviceInfo

__all__ = [
    "GROUP",
    "HOST",
    "Problem",
    "adapter",
    "dlpack_owner",
    "interfaces",
    "known",
    "listed",
    "loaded",
    "on_first_use",
    "on_host",
    "problems",
    "record",
    "records",
    "refused",
    "search",
    "vendors",
    "why_none",
]

GROUP: Final = "xpushare.adapters"
HOST: Final = "native_cpu"  # the backend of the host itself, whose memory is every process's


class Problem(NamedTuple):
    """Why an adapter from another package cannot be used."""

    name: str  # of the entry point
    why: str
    fix: str


_folders: list[str] | None = None
_records: dict[str, Vendor] = {}  # of the folders
_others: dict[str, Vendor] | None = None  # of entry points, by their names
_owners: dict[int, tuple[Vendor, DLPackType]] = {}  # by DLPack's device type
_on_host: dict[int, bool] = {}
_problems: list[Problem] = []
_broken: dict[str, str] = {}  # backend of another package -> why its adapter does nothing
_adapters: dict[str, Adapter] = {}
_listeners: list[Callable[[str], object]] = []
_lock = threading.RLock()


@doing("looking for adapters")
def _own_names() -> list[str]:
    """Return the names of the subpackages of this package that have a vendor record."""
    global _folders
    if _folders is None:
        import pkgutil  # slow to import

        packages = [each.name for each in pkgutil.iter_modules(__path__) if each.ispkg]
        _folders = [name for name in packages if "vendor" in {each.name for each in pkgutil.iter_modules(
            [os.path.join(folder, name) for folder in __path__])}]  # fmt: skip
    return _folders


def _own(name: str) -> Vendor:
    """Return the vendor record of a subpackage of this package."""
    found = _records.get(name)
    if found is None:
        found = _records[name] = load(f"{__name__}.{name}.vendor").vendor
    return found


def _elsewhere() -> dict[str, Vendor]:
    """Return the vendors that other packages provide. A vendor that cannot be used is left out, recorded as a `Problem`
    and logged as a warning.
    """
    global _others
    if _others is None:  # no lock: a concurrent caller gets the same result, and imports under a lock can deadlock
        found: dict[str, Vendor] = {}
        for point in _entry_points():
            if point.name in _own_names() or point.name in found:
                _report(point, "there is another adapter of that name, which is used", "uninstall one of them")
                continue
            record = _load(point)
            if record is not None:
                found[record.backend] = record
        _others = found
    return _others


def _entry_points() -> Iterable[EntryPoint]:
    if not _may_be_named():
        return ()
    from importlib import metadata  # slow to import

    return metadata.entry_points(group=GROUP)


def _may_be_named() -> bool:
    """Return whether some package may have an entry point of the group `xpushare.adapters`. Looks for the name of the
    group in the `entry_points.txt` files of the folders in `sys.path`. If packages can come from other places, such as
    archives, the answer is True.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    for folder in map(str, sys.path):
        try:
            names = os.listdir(folder or ".")
        except NotADirectoryError:
            return True  # an archive
        except OSError:
            continue
        if folder.lower().endswith(".egg"):
            return True
        for name in names:
            if name.lower().endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                        if GROUP.encode() in file.read():
                            return True
                except OSError:
                    pass  # it has none
    return False


def _load(point: EntryPoint) -> Vendor | None:
    try:
        loaded = point.load()
        record = loaded if isinstance(loaded, Vendor) else getattr(loaded, "vendor", None)
    except Exception as error:
        _report(point, f"its record cannot be loaded ({type(error).__name__}: {error})")
        return None
    if not isinstance(record, Vendor):
        _report(point, f"{point.value} is not an xpushare.adapters.vendor.Vendor")
    elif record.backend != point.name:
        _report(point, f"its record is for backend {record.backend!r}, whose name the entry point must have")
    else:
        return record
    return None


def _report(point: EntryPoint, why: str, fix: str = "") -> None:
    package = point.dist.name if point.dist is not None else point.value
    _problem(point.name, f"{why} (from {package})", fix or f"update or uninstall {package}")


def _problem(name: str, why: str, fix: str) -> None:
    import logging  # at the first need: slow to import

    _problems.append(Problem(name, why, fix))
    logging.getLogger("xpushare").warning("adapter %s cannot be used: %s", name, why)


def _is_broken(backend: str, why: str) -> None:
    if backend not in _broken:
        _broken[backend] = why
        _problem(backend, why, "update or uninstall the package that it comes from")


def problems() -> list[Problem]:
    """Return the problems of adapters from other packages that this process has found so far."""
    _elsewhere()
    return list(_problems)


def search() -> Iterator[Vendor]:
    """Yield all vendors, those of this package first, so that a caller that finds a match need not look for other
    packages.
    """
    yield from records(own=True)
    yield from records(own=False)


def records(own: bool) -> Iterable[Vendor]:
    """Return the vendors of this package or, if `own` is False, those of other packages. Only the second case searches
    for other packages.
    """
    return map(_own, _own_names()) if own else _elsewhere().values()


def vendors(backends: Iterable[str] | None = None) -> list[Vendor]:
    """Return all vendors, or the vendors of these backends, in the order in which devices are listed. Leaves out
    backends that have no adapter.
    """
    found = search() if backends is None else filter(None, map(record, backends))
    return sorted(found, key=lambda each: (each.order, each.backend))


def known(backend: str) -> bool:
    """Return whether an adapter of that name is installed."""
    return backend in _own_names() or backend in _elsewhere()


def record(backend: str) -> Vendor | None:
    """Return the vendor whose backend has that name, or None if no adapter of that name is installed."""
    found = _records.get(backend)
    if found is None:
        found = _own(backend) if backend in _own_names() else _elsewhere().get(backend)
    return found


@functools.cache
def interfaces(own: bool) -> tuple[tuple[Vendor, ArrayInterface], ...]:
    """Return the array interfaces of this package's vendors or, if `own` is False, those of other packages' vendors. A
    caller that finds a match among this package's vendors need not look for other packages.
    """
    return tuple((record, each) for record in records(own) for each in record.interfaces)


def dlpack_owner(number: int) -> tuple[Vendor, DLPackType]:
    """Return the vendor whose arrays have the DLPack device type `number`. Raises `FeatureNotSupportedError` if no
    vendor knows the type, or if arrays of that type do not report memory addresses.
    """
    found = _owners.get(number)
    if found is None:
        matches = ((record, each) for record in search() for each in record.dlpack if each.foreign)
        found = next((match for match in matches if match[1].number == number), None)
        name = DLPACK_NAMES.get(number, "unknown")
        if found is None:
            others = ", ".join(
                f"{each.number} ({each.name}, {record.backend})"
                for record in vendors()
                for each in record.dlpack
                if each.foreign and each.address
            )
            raise FeatureNotSupportedError(
                f"no adapter here knows DLPack's device type {number} ({name}); known: {others}"
            )
        if not found[1].address:
            raise FeatureNotSupportedError(
                f"the pointer of an array of DLPack's device type {number} ({name}) is a handle of the driver of "
                f"{found[0].backend}, not an address"
            )
        _owners[number] = found
    return found


def on_host(number: int) -> bool:
    """Return whether the host can read and write memory of the DLPack device type `number`."""
    found = _on_host.get(number)
    if found is None:
        types = (each for record in search() for each in record.dlpack if each.number == number)
        found = _on_host[number] = any(each.host for each in types)
    return found


def loaded() -> list[Adapter]:
    """Return the adapters that this process has used."""
    return list(_adapters.values())


def adapter(backend: str) -> Adapter:
    """Return the adapter of that name, made once per process. Raises `FeatureNotSupportedError` if no such adapter is
    installed, or if an adapter of another package is broken.
    """
    found = _adapters.get(backend)
    if found is None:
        with _lock:
            found = _adapters.get(backend)
            if found is None:
                found = _make(backend)
                for tell in _listeners:
                    tell(backend)
                _adapters[backend] = found
    return found


def on_first_use(tell: Callable[[str], object]) -> None:
    """Call `tell` with the name of each backend whose adapter this process has made. From now on, `tell` is also called
    for each new adapter, before other code uses that adapter.
    """
    with _lock:
        for backend in _adapters:
            tell(backend)
        _listeners.append(tell)


def _make(backend: str) -> Adapter:
    found = record(backend)
    if found is None:
        raise FeatureNotSupportedError(f"there is no adapter for backend {backend!r}")
    try:
        return found.make()
    except Exception as error:
        if backend in _own_names():
            raise
        why = f"it cannot be started ({type(error).__name__}: {error})"
        _is_broken(backend, why)
        raise FeatureNotSupportedError(f"the adapter for {backend}: {why}") from error


def listed(backend: str) -> list[DeviceInfo]:
    """Return the devices of that backend, or none if its adapter comes from another package and is broken."""
    try:
        return adapter(backend).devices()
    except Exception as error:
        if backend in _own_names():
            raise
        _is_broken(backend, f"it cannot list its devices ({type(error).__name__}: {error})")
        return []


def why_none(backend: str) -> str:
    """Return why there are no devices of that backend."""
    return _broken.get(backend) or adapter(backend).why_none()


def refused(backend: str) -> list[str]:
    """Return the name and reason of each device of that backend that cannot be used and that `listed` leaves out."""
    return [] if backend in _broken else adapter(backend).refused()


def _renew_lock() -> None:
    """Replace the lock in a forked child. The thread that held the old lock does not exist in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)
