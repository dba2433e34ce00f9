"""Chooses the device for a handle, checks that the device can open the handle, and opens the handle there. The same
code serves memory, physical memory and events.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from xpushare._native import End
from xpushare.adapters.base import DeviceInfo, Export, Form, Hardware, Import, Same
from xpushare.common import system
from xpushare.common.aspects import Aspect
from xpushare.common.errors import (
    DeviceError,
    FeatureNotSupportedError,
    HandleExpiredError,
    InvalidArgumentError,
    InvalidHandleError,
    OutOfMemoryError,
    RouteError,
    XpuShareError,
    from_os_error,
)
from xpushare.common.fds import OwnedFd, close_all
from xpushare.core.device import (
    Context,
    Device,
    DeviceLike,
    adapter_of,
    device_for_handle,
    devices,
    info_of,
    names_of,
    require,
    resolve_context,
)
from xpushare.core.resources import Resource
from xpushare.sharing import layout, node
from xpushare.sharing.handle import COUNTED, PICKLED, READ_ONLY, Handle, fields_of
from xpushare.sharing.idle import HOST, Room, Uses
from xpushare.sharing.node import Node
from xpushare.sharing.peers import Opener, OpenNative
from xpushare.sharing.table import Exported

__all__ = [
    "FORM_NAMES",
    "OPEN_ERRORS",
    "Openers",
    "event_device",
    "expect_importable",
    "give_open",
    "import_own",
    "memory_nbytes",
    "opening_device",
    "own_export",
    "room_of",
]

OPEN_ERRORS: Final = (
    InvalidHandleError, InvalidArgumentError, HandleExpiredError, RouteError, FeatureNotSupportedError,
    OutOfMemoryError, DeviceError,
)  # fmt: skip
"""The errors of opening a handle."""
FORM_NAMES: Final = {
    Form.DRIVER: "the driver's own handle",
    Form.MEMFD: "a memfd",
    Form.VMM_FD: "a VMM fd",
    Form.OPAQUE_FD: "an opaque fd",
    Form.DMA_BUF: "a dma-buf",
}


def opening_device(handle: Handle, device: DeviceLike | None, context: Context | None) -> tuple[Device, Context]:
    """Return the device to open on: the requested one, else the one that the handle names if the context has it, else
    the context's first.
    """
    if device is not None:
        chosen = device if isinstance(device, Device) else Device(device)
        return chosen, resolve_context(chosen, context)
    names = handle.backend, fields_of(handle).device_uuid
    if isinstance(context, Context):
        chosen = next((each for each in context.devices if names_of(each) == names), context.devices[0])
    else:
        chosen = device_for_handle(*names)
    return chosen, resolve_context(chosen, context)


def event_device(handle: Handle, device: DeviceLike | None, context: Context | None) -> tuple[Device, Context]:
    """Return the device to open an event on, as `opening_device` does. Every device can open events. If this process
    does not see the named device, the host opens the event.
    """
    try:
        return opening_device(handle, device, context)
    except InvalidArgumentError:
        if device is not None or context is not None or handle.backend == "native_cpu":
            raise
        for host in devices("native_cpu:*"):
            return host, host.context
        raise


def expect_importable(device: Device, physical: bool, form: Form, exporter: Hardware) -> None:
    """Raise `FeatureNotSupportedError`, with the reason, unless `device` can import this form of export from another
    backend.
    """
    here: Hardware = info_of(device).hardware
    common: Same | None = adapter_of(device).imports(info_of(device), physical).get(form)
    same_device = here.uuid == exporter.uuid or bool(here.pci and here.pci == exporter.pci)
    if common is None:
        why = f"it comes as {FORM_NAMES[form]}, which {here.backend} does not import"
    elif common is not Same.HOST and not same_device:
        why = (
            f"{FORM_NAMES[form]} is imported on the same hardware only: it is on the device with uuid {exporter.uuid}, "
            f"PCI address {exporter.pci or 'unknown'}, this one is {here.uuid}, {here.pci or 'unknown'}"
        )
    elif common is Same.DRIVER and not (here.driver_uuid and here.driver_uuid == exporter.driver_uuid):
        why = (
            f"{FORM_NAMES[form]} is imported by the same driver only: its driver has the uuid "
            f"{exporter.driver_uuid or 'unknown'}, this one {here.driver_uuid or 'unknown'}"
        )
    else:
        return
    what = "physical memory" if physical else "memory"
    raise FeatureNotSupportedError(f"{what} of {exporter.backend} cannot be opened on {device}: {why}")


@functools.cache
def memory_nbytes(device: Device) -> int:
    """Return the size of the device's memory."""
    nbytes: int = adapter_of(device).properties(info_of(device)).memory_nbytes
    return nbytes


def _free_nbytes(device: Device) -> int:
    nbytes: int = adapter_of(device).properties(info_of(device)).free_nbytes
    return nbytes


@functools.cache
def room_of(device: Device) -> Room:
    """Return the limits of the device's idle memory. They are the host's for a device whose memory native code looks
    after.
    """
    look_after, after_work = adapter_of(device).look_after, adapter_of(device).after_work
    if look_after is None:
        return HOST
    uses = None if after_work is None else Uses(partial(after_work, info_of(device)))
    return Room(partial(memory_nbytes, device), partial(_free_nbytes, device), look_after, uses)


class Openers:
    """Creates an `Opener` for each device, for one kind of object.

    The openers call `make` to import one export on a device. Its arguments are the device, the device's adapter, the
    adapter's description of the device, and the export. `make_all` imports several exports in one call. `find_native`
    returns the native function that opens one export.

    `aspect` is the aspect that a device needs to import exports of its own backend. For other backends,
    `Adapter.imports` lists the forms of export that the device can import. If `own` is true, this process can export
    the objects that these openers open.
    """

    def __init__(
        self,
        aspect: Aspect,
        make: Callable[[Device, Any, DeviceInfo, Import], Any],
        make_all: Callable[[Device, Sequence[Import]], list[Any]] | None = None,
        own: bool = False,
        find_native: Callable[[Device], OpenNative] | None = None,
    ) -> None:
        self._aspect = aspect
        self._find_native = find_native
        self._make = make
        self._make_all = make_all
        self._own = own
        self._known: dict[tuple[int, bool], Opener] = {}  # by the id of the device, which the opener keeps alive

    def on(self, device: Device, handle: Handle) -> Opener:
        """Return the opener for handles of the same kind as this one. Each call returns the same object, because the
        opener is part of a cache's key.
        """
        abroad = device.backend != handle.backend
        if not abroad:
            require(device, self._aspect)
        if self._own:
            require(device, Aspect.outlives_exporter)
        found = self._known.get((id(device), abroad))
        if found is None:
            physical = self._aspect is Aspect.ext_oneapi_ipc_physical_memory
            maps = adapter_of(device).maps_memfds and not physical and not self._own
            finds = not abroad and adapter_of(device).importer is not None
            found = Opener(
                partial(self._make, device, adapter_of(device), info_of(device)),
                partial(expect_importable, device, physical) if abroad else None,
                maps,
                adapter_of(device).least_per_fd,
                None if physical else room_of(device),
                partial(self._make_all, device) if self._make_all else None,
                self._own,
                partial(self._find_native, device) if self._find_native and finds else None,
            )
            found = self._known.setdefault((id(device), abroad), found)
        return found

    def forget(self) -> None:
        self._known.clear()
        room_of.cache_clear()


def own_export(here: Node, handle: Handle) -> Exported:
    """Return the export behind a handle that this process made. If the handle can be opened only a limited number of
    times, this call counts as one of them.
    """
    table = here.table()
    exported = table.find(handle)
    fields = fields_of(handle)
    counted = fields.flags & (COUNTED if node.left() else COUNTED | PICKLED)
    if counted and not table.domain.take_open(fields.entry) and (counted & COUNTED or exported.outlives):
        reason = layout.REASON_OPENS if counted & COUNTED else layout.REASON_PICKLE
        raise HandleExpiredError(f"the handle has expired: {layout.REASONS[reason]}")
    return exported


def import_own(here: Node, handle: Handle, opener: Opener, source: Resource, export: Callable[[], Export]) -> Any:
    """Import an object of this process on a device of another backend, or once more on its own device."""
    fields = fields_of(handle)
    # Without PICKLED: this process exports the memory itself.
    key = fields.cookie, fields.object, opener, fields.flags & READ_ONLY
    exporter = None if opener.admit is None else info_of(source.device).hardware
    with End(give_open, handle):
        what = export()
        return here.peers.cached(key, lambda: _import_own(handle, what, exporter, opener))


def _import_own(handle: Handle, export: Export, exporter: Hardware | None, opener: Opener) -> Any:
    nbytes, exposed_nbytes, numbers, inode, payload, on_demand, form, offset = export
    if opener.admit is not None and exporter is not None:
        opener.admit(form, exporter)
    if on_demand is not None:
        raise FeatureNotSupportedError(
            f"{nbytes} bytes of this very process lie over several allocations, which cannot be imported here"
        )
    mapping: system.Mapping | None = None
    fds: list[OwnedFd] = []
    try:
        if form is Form.MEMFD and opener.maps:
            mapping = system.import_mapping(numbers[0], inode, exposed_nbytes, not handle.read_only)
        else:
            fds += (system.dup(number) for number in numbers)
        what = Import(nbytes, exposed_nbytes, payload, fds, handle.read_only, mapping, form, offset, exporter)
        return opener.make(what)
    except OSError as error:
        if isinstance(error, XpuShareError):
            raise
        raise from_os_error(error, f"opening {exposed_nbytes} bytes of this process") from error
    finally:
        close_all(fds)


def give_open(handle: Handle) -> None:
    """After an attempt to open a handle has failed, let the handle be opened once more, if it can be opened only a
    limited number of times.
    """
    here = node.current()
    fields = fields_of(handle)
    if fields.flags & (COUNTED | PICKLED):
        if here.is_own(fields.cookie):
            here.table().give_open(handle)
        elif (exporter := here.peers.known(fields.cookie)) is not None:  # otherwise the exporter is gone
            exporter.domain.give_open(fields.entry)
