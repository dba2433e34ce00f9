"""Devices and contexts, and the selector language that names them."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, final

from xpushare import adapters
from xpushare.adapters.vendor import UR_BACKENDS, Vendor
from xpushare.common import texts
from xpushare.common.aspects import Aspect, Support
from xpushare.common.errors import FeatureNotSupportedError, InvalidArgumentError, Unread, XpuShareError

__all__ = [
    "Context",
    "Device",
    "DeviceLike",
    "adapter_of",
    "default_device",
    "device_for_handle",
    "devices",
    "devices_named",
    "devices_of_backends",
    "dlpack_of",
    "info_of",
    "known_device",
    "names_of",
    "resolve",
    "resolve_context",
    "require",
]

_TYPES: Final = {"cpu": "cpu", "gpu": "gpu", "fpga": "accelerator", "accelerator": "accelerator"}
_ELSEWHERE: Final = "the native part of xpushare is built for Linux only: there are no devices on this platform"
_EXAMPLES: Final = "'cpu', 'gpu', 'native_cpu:0', 'cuda:0' or a uuid"


class _Filter(NamedTuple):
    """One filter of a selector. `root` is the first part of `root.sub.subsub`. xpushare has no sub-devices, so filters
    with a dot match no device.
    """

    backend: str
    root: str
    dotted: bool

    def matches(self, device: Device) -> bool:
        info = info_of(device)
        if self.dotted or self.backend not in ("*", info.backend):
            return False
        if self.root.isdecimal():
            return self.root.lstrip("0") == str(device.ordinal).lstrip("0")  # `int` refuses numbers of 4,301 digits
        return _TYPES.get(self.root, device.type) == device.type


class _Selector(NamedTuple):
    """A parsed selector, such as the value of ONEAPI_DEVICE_SELECTOR."""

    accept: tuple[_Filter, ...]
    discard: tuple[_Filter, ...]
    named: frozenset[str]

    def choose(self, found: list[Device]) -> list[Device]:
        """Return the devices that this selector selects, in the order of the filters that accept them."""
        left = [device for device in found if not any(item.matches(device) for item in self.discard)]
        chosen = [device for item in self.accept for device in left if item.matches(device)]
        return list(dict.fromkeys(chosen))


def _is_backend(name: str) -> bool:
    return name in UR_BACKENDS or adapters.known(name)


def _parse(text: str) -> _Selector:
    """Parse a selector of the form `term(;term)*`. A term is `[!]backend:filter(,filter)*`, and a filter is
    `*|number|cpu|gpu|fpga[.sub[.subsub]]`. Case does not matter.

    This follows Unified Runtime's loader: a trailing `;` or `,` is ignored, terms that discard devices (`!`) may come
    in any order, and a filter that is neither a number nor a type (`**`, `acc`, `-1`) means every device.
    """

    def wrong(why: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"device selector {text!r}: {why} (grammar: [!]backend:filter,… ; filter is *, a number, cpu, gpu or fpga)"
        )

    accept: list[_Filter] = []
    discard: list[_Filter] = []
    for term in text.lower().removesuffix(";").split(";"):
        body = term.strip()
        out = body.startswith("!")
        body = body[out:]
        if body.count(":") != 1:
            typed = body in _TYPES or body == "*"
            meant = f"{'!' * out}*:{body}" if typed else f"{'!' * out}{body}:*" if _is_backend(body) else ""
            if meant:
                raise wrong(f"{term.strip()!r} needs one colon: did you mean {meant!r}?")
            raise wrong(f"{term.strip()!r} needs one colon, as in *:gpu or native_cpu:0")
        backend, _, filters = body.partition(":")
        if not backend.startswith("*") and not _is_backend(backend):
            raise wrong(f"there is no backend {backend!r}")
        for item in filters.strip().removesuffix(",").split(","):
            parts = item.strip().split(".")
            if not parts[0]:
                raise wrong(f"{term.strip()!r} has an empty filter")
            if len(parts) > 3:
                raise wrong(f"{item!r} has too many dots")
            if any(first == "*" and second != "*" for first, second in itertools.pairwise(parts)):
                raise wrong(f"in {item!r} only a * can follow a *")
            named = "*" if backend.startswith("*") else backend
            (discard if out else accept).append(_Filter(named, parts[0], len(parts) > 1))
    if not accept:
        accept.append(_Filter("*", "*", False))
    return _Selector(tuple(accept), tuple(discard), frozenset(item.backend for item in accept))


@final
class Device:
    """A device of this process.

    Devices are equal if their backends and uuids are equal. A physical device has the same uuid under any ordinal. A
    `Device` can be pickled. Making a `Device` starts no driver.

    Args:
        name (str | Device): `"native_cpu:0"`, `"cuda:1"`, `"gpu"`, `"cpu"` or a uuid. If several devices match, as with
            `"cuda"`, the result is the first of them.

    Raises:
        InvalidArgumentError: No device that this process can see has this name.

    Examples:
        >>> device = xs.Device("cpu")
        >>> device.backend, device.type, str(device)
        ('native_cpu', 'cpu', 'native_cpu:0')
    """

    __slots__ = ("__weakref__", "_adapter", "_aspects", "_context", "_dlpacks", "_hash", "_info", "_names", "_unread")

    # Set if a pickle named a device that is not visible here; then only the names and the hash are set, too.
    _unread: Unread
    _names: tuple[str, bytes]  # backend and uuid, as handles name the device
    _hash: int
    _adapter: Any
    _info: Any
    _context: Context | None
    _aspects: dict[Aspect, Support]
    _dlpacks: dict[str, tuple[int, int]]

    def __new__(cls, name: str | Device, /) -> Device:
        if isinstance(name, Device):
            return name
        if not isinstance(name, str):
            raise InvalidArgumentError(f"a device is named by a string such as {_EXAMPLES}, not {type(name).__name__}")
        return _named(name)

    @classmethod
    def _make(cls, adapter: Any, info: Any) -> Device:
        self = cls._named((info.backend, uuid.UUID(info.uuid).bytes))
        self._adapter = adapter
        self._info = info
        return self

    @classmethod
    def _named(cls, names: tuple[str, bytes]) -> Device:
        self = object.__new__(cls)
        self._names = names
        self._hash = hash(names)
        self._context = None
        self._aspects = {}
        self._dlpacks = {}
        return self

    @property
    def backend(self) -> str:
        """`native_cpu`, `cuda`, `level_zero`, `hip`, `opencl`, `vulkan` or the name of your own adapter."""
        return str(info_of(self).backend)

    @property
    def name(self) -> str:
        """The driver's name for the device."""
        return str(info_of(self).name)

    @property
    def uuid(self) -> str:
        """The uuid of the physical device, the same in every process of this host."""
        return str(info_of(self).uuid)

    @property
    def type(self) -> Literal["cpu", "gpu", "accelerator"]:
        """`cpu`, `gpu` or `accelerator`."""
        found: Literal["cpu", "gpu", "accelerator"] = info_of(self).type
        return found

    @property
    def ordinal(self) -> int:
        """The device's number among the devices of its backend in this process. Variables such as
        `CUDA_VISIBLE_DEVICES` change it.
        """
        return int(info_of(self).ordinal)

    @property
    def driver_version(self) -> str:
        """Version of the driver, as the driver spells it."""
        return str(info_of(self).driver_version)

    @property
    def aspects(self) -> frozenset[Aspect]:
        """The aspects for which `support` answers "yes"."""
        return frozenset(aspect for aspect in Aspect if self.has(aspect))

    def has(self, aspect: Aspect | str) -> bool:
        """Return whether the device is known to have an aspect.

        Args:
            aspect: An `Aspect` or its name.

        Returns:
            True if `support` answers "yes".

        Raises:
            InvalidArgumentError: There is no such aspect.

        Examples:
            >>> xs.Device("native_cpu:0").has("outlives_exporter")
            True
        """
        return self.support(aspect).state == "yes"

    def support(self, aspect: Aspect | str) -> Support:
        """Return whether the device has an aspect, and the evidence for the answer.

        This may start the driver.

        Args:
            aspect: An `Aspect` or its name.

        Returns:
            The state, "yes", "no" or "unknown", and the reason.

        Raises:
            InvalidArgumentError: There is no such aspect.

        Examples:
            >>> xs.Device("native_cpu:0").support(xs.Aspect.ext_oneapi_ipc_memory).state
            'yes'
        """
        try:
            wanted = Aspect(aspect)
        except ValueError:
            raise InvalidArgumentError(f"{aspect!r} is not an aspect; they are {', '.join(Aspect)}") from None
        return self._ask(wanted)

    def _ask(self, aspect: Aspect) -> Support:
        found = self._aspects.get(aspect)
        if found is None:
            found = self._aspects[aspect] = adapter_of(self).support(info_of(self), aspect)
        return found

    def _require(self, aspect: Aspect) -> None:
        found = self._aspects.get(aspect) or self._ask(aspect)
        if found.state != "yes":
            raise FeatureNotSupportedError(f"{self} does not support {aspect}: {found.reason}")

    @property
    def context(self) -> Context:
        """The context that contains only this device. It is the default of every `context` argument."""
        if self._context is None:
            adapter_of(self)  # raises if the device is not visible here
            self._context = Context([self])
        return self._context

    def memory_granularity(self, recommended: bool = False) -> int:
        """Return the granule size. The sizes of physical memory and of mappings are multiples of it.

        Args:
            recommended: True returns the granule that the driver recommends. False returns the smallest one.

        Returns:
            A number of bytes. (urVirtualMemGranularityGetInfo)

        Raises:
            FeatureNotSupportedError: The device has no virtual memory.
            DeviceError: The driver failed.

        Examples:
            >>> xs.Device("native_cpu:0").memory_granularity() % 4096
            0
        """
        return int(adapter_of(self).granularity(info_of(self), recommended))

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self._names == other._names if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def _repr_html_(self) -> str:
        if hasattr(self, "_unread"):
            return texts.facts("Device", {"state": f"not visible here: {self._unread}"})
        said = {
            "name": self.name, "type": self.type, "driver": self.driver_version, "uuid": self.uuid,
        }  # fmt: skip
        return texts.facts(f"Device {self}", said)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return texts.bundle(self, include, exclude)

    def __repr__(self) -> str:
        if hasattr(self, "_unread"):
            return f"<Device of {self._names[0]} that is not visible here: {self._unread}>"
        return f"<Device {self.backend}:{self.ordinal} {self.name}>"

    def __str__(self) -> str:
        return f"{self.backend}:{self.ordinal}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, self._names


def _unpickle(backend: str, device_uuid: bytes) -> Device:
    try:
        return device_for_handle(backend, device_uuid)
    except XpuShareError as error:
        unread = Device._named((backend, device_uuid))  # pyright: ignore[reportPrivateUsage]
        unread._unread = Unread(error)  # pyright: ignore[reportPrivateUsage]
        return unread


DeviceLike = Device | str

_known: dict[tuple[str, str], Device] = {}
_named_by_handles: dict[tuple[str, bytes], Device] = {}


# --- the friends of `Device`, through which other modules reach what users need not see


def adapter_of(device: Device) -> Any:
    """Return the adapter of a device. Raises an error if the device was unpickled and this process does not see it."""
    try:
        return device._adapter  # pyright: ignore[reportPrivateUsage]
    except AttributeError:
        device._unread()  # pyright: ignore[reportPrivateUsage]


def info_of(device: Device) -> Any:
    """Return the adapter's description of the device. Raises the same error as `adapter_of`."""
    try:
        return device._info  # pyright: ignore[reportPrivateUsage]
    except AttributeError:
        device._unread()  # pyright: ignore[reportPrivateUsage]


def names_of(device: Device) -> tuple[str, bytes]:
    """Return the backend and the uuid of a device. Handles identify the device by these two values."""
    return device._names  # pyright: ignore[reportPrivateUsage]


def require(device: Device, aspect: Aspect) -> None:
    """Raise `FeatureNotSupportedError`, with the reason, unless the device has the aspect."""
    device._require(aspect)  # pyright: ignore[reportPrivateUsage]


def dlpack_of(device: Device, kind: str) -> tuple[int, int]:
    """Return the DLPack device, (type, id), of memory of that kind on the device."""
    found = device._dlpacks.get(kind)  # pyright: ignore[reportPrivateUsage]
    if found is None:
        found = device._dlpacks[kind] = adapter_of(device).dlpack_device(info_of(device), kind)  # pyright: ignore[reportPrivateUsage]
    return found


def known_device(adapter: Any, info: Any) -> Device:
    """Return the one `Device` object that this process has for the device."""
    key = (info.backend, info.uuid)
    found = _known.get(key)
    return _known.setdefault(key, Device._make(adapter, info)) if found is None else found  # pyright: ignore[reportPrivateUsage]


def _backend_devices(backend: str) -> list[Device]:
    infos = adapters.listed(backend)
    return [known_device(adapters.adapter(backend), info) for info in infos]


def devices(selector: str | None = None) -> list[Device]:
    """List the devices of this process.

    This does not start any driver that would make a later fork unsafe. Some backends (`mock`) are available only if a
    selector names them.

    Args:
        selector: Selects devices, in the grammar of the environment variable
            `ONEAPI_DEVICE_SELECTOR`. A device has to match that variable as well.

    Returns:
        The devices, in the order of their backends and of the selector's filters.

    Raises:
        InvalidArgumentError: The selector, or the environment variable, does not parse.

    Examples:
        >>> xs.devices("native_cpu:*")[0].type
        'cpu'
    """
    if not isinstance(selector, str | None):
        raise InvalidArgumentError(f"a selector is a string such as 'native_cpu:*', not {type(selector).__name__}")
    selectors, backends = _choice(_said(), selector)
    found: list[Device] = []
    for backend in backends:
        chosen = _backend_devices(backend)
        for one in selectors:
            chosen = one.choose(chosen)
        found += chosen
    return found


def devices_named(text: str | None) -> list[Device]:
    """Return the devices that the option `--device` of a command selects. The option takes a selector, or a name that
    `Device` accepts. The name of a type or backend selects all of its devices.
    """
    name = (text or "").strip().lower()
    if _as_uuid(name) is not None:
        return [Device(name)]
    if name in _TYPES:
        return devices(f"*:{name}")
    try:
        return devices(f"{name}:*" if _is_backend(name) else text)
    except InvalidArgumentError as error:
        if ":" not in name and repr(text) in error.message:  # an error about this text
            error.message += ". Names without a colon are cpu, gpu, a backend such as native_cpu, or a uuid"
        raise


def devices_of_backends() -> list[Device]:
    """Return all devices of the backends that `ONEAPI_DEVICE_SELECTOR` allows, for a caller that applies the rest of
    the variable's selector itself.
    """
    _, backends = _choice(_said())
    return [device for backend in backends for device in _backend_devices(backend)]


def _said() -> str | None:
    return os.environ.get("ONEAPI_DEVICE_SELECTOR") or None


@functools.lru_cache(256)
def _choice(*texts: str | None) -> tuple[list[_Selector], list[str]]:
    """Parse the selectors. Returns the parsed selectors and the backends that they allow."""
    selectors = [_parse(text) for text in texts if text is not None]
    if sys.platform != "linux":
        return selectors, []
    named = [one.named for one in selectors]
    exact = [names for names in named if "*" not in names]  # without a wildcard, not every adapter has to be asked
    backends = [
        record.backend
        for record in adapters.vendors(exact[0] if exact else None)
        if all(record.backend in names or "*" in names for names in named)
        and (not record.selected_only or any(record.backend in names for names in named))
    ]
    return selectors, backends


# (name, the selection at that time) -> the device, and where it is registered. Devices are never removed.
_found: dict[tuple[str, str | None], tuple[Device, tuple[str, str]]] = {}
_FOUND_MOST = 256


def _named(name: str) -> Device:
    key = name, _said()
    known = _found.get(key)
    if known is not None and _known.get(known[1]) is known[0]:
        return known[0]
    found = _look_for(name)
    if len(_found) < _FOUND_MOST:
        _found[key] = found, (found.backend, found.uuid)
    return found


def _look_for(name: str) -> Device:
    if sys.platform != "linux":
        raise FeatureNotSupportedError(_ELSEWHERE)
    text = name.strip().lower()  # as in a selector, case does not matter
    wanted = _as_uuid(text)
    if wanted is None:
        return _selected(text)
    for device in devices():
        if names_of(device)[1] == wanted.bytes:
            return device
    _expect_any()
    hiding = _variables(adapters.vendors())
    raise InvalidArgumentError(
        f"device {wanted} is not visible to this process; it may exist ({hiding} hide devices). Visible: {_listing()}"
    )


def _variables(vendors: Iterable[Vendor]) -> str:
    """Return the environment variables by which a user can hide devices of these vendors, as text for a message."""
    return " and ".join([*(name for each in vendors for name in each.variables), "ONEAPI_DEVICE_SELECTOR"])


@functools.lru_cache(256)
def _as_uuid(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


def _listing() -> str:
    return ", ".join(f"{device} ({device.uuid})" for device in devices()) or "none"


def _selected(text: str) -> Device:
    if text in _TYPES:
        for device in devices():
            if device.type == _TYPES[text]:
                return device
        _expect_any()
        raise InvalidArgumentError(f"there is no {text} here. Visible: {_listing()}")
    backend, colon, ordinal = text.partition(":")
    everyones = backend == "*" and bool(colon)
    numbers = all(each == "*" or each in _TYPES or each.isdecimal() for each in ordinal.split(",") if each)
    if not (everyones or _is_backend(backend)) or not numbers:
        raise InvalidArgumentError(
            f"{text!r} names no device. Valid names are, for example, {_EXAMPLES}. Visible: {_listing()}"
        )
    found = devices(f"{backend}:{ordinal or '*'}")
    if not found:
        _expect_any()
        why = ""
        if _is_backend(backend):
            known = adapters.known(backend)
            if not known or not _backend_devices(backend):
                why = f": {adapters.why_none(backend) if known else 'no adapter for that backend is installed'}"
            elif len(devices(f"{backend}:*")) < len(_backend_devices(backend)):
                why = f": ONEAPI_DEVICE_SELECTOR={_said()} hides devices of {backend}"
        raise InvalidArgumentError(f"there is no device {text!r} here{why}. Visible: {_listing()}")
    return found[0]


def default_device() -> Device:
    """Return the first GPU of this process, or the host device if there is no GPU.

    Returns:
        The device that `malloc_*`, `Event`, `Queue` and `PhysicalMemory` take by default. Arrays of
        `empty` lie on the host.

    Raises:
        FeatureNotSupportedError: `ONEAPI_DEVICE_SELECTOR` leaves no device to this process.
        InvalidArgumentError: `ONEAPI_DEVICE_SELECTOR` is not a valid selector.

    Examples:
        >>> xs.default_device() in xs.devices()
        True
    """
    found = devices()
    for device in found:
        if device.type == "gpu":
            return device
    if found:
        return found[0]
    if sys.platform != "linux":
        raise FeatureNotSupportedError(_ELSEWHERE)
    _expect_any()
    raise FeatureNotSupportedError("ONEAPI_DEVICE_SELECTOR leaves no device to this process")


def _expect_any() -> None:
    """Raise `FeatureNotSupportedError` if this machine has no device at all, not even one that a selector hides."""
    everywhere = [record.backend for record in adapters.vendors() if not record.selected_only]
    if not any(map(_backend_devices, everywhere)):
        why = "; ".join(f"{backend}: {adapters.why_none(backend)}" for backend in everywhere)
        raise FeatureNotSupportedError(f"this process has no device ({why})")


def device_for_handle(backend: str, device_uuid: bytes) -> Device:
    """Return the device that a handle names by its uuid. Raises `InvalidArgumentError` if this process cannot see that
    device.
    """
    found = _named_by_handles.get((backend, device_uuid))
    if found is not None:
        return found
    record = adapters.record(backend)
    if record is None:
        raise InvalidArgumentError(f"the handle is for a device of {backend!r}, for which no adapter is installed here")
    for device in devices(f"{backend}:*"):
        if names_of(device)[1] == device_uuid:
            _named_by_handles[backend, device_uuid] = device
            return device
    if record.selected_only:  # it shows the devices of other backends again
        for device in devices():
            if names_of(device)[1] == device_uuid:
                return device
    raise InvalidArgumentError(
        f"the handle is for device {uuid.UUID(bytes=device_uuid)} of {backend}, which this process may not see: check "
        f"{_variables([record])}, or pass device= to open it on one that can reach it. Visible: {_listing()}"
    )


@final
class Context:
    """Devices of one backend that share objects, like SYCL's `context`.

    Contexts are equal if their devices are equal. For every `context` argument, None means the device's own context.

    Args:
        devices: One device or several.

    Raises:
        InvalidArgumentError: The list is empty, a device occurs twice, or the backends differ.

    Examples:
        >>> xs.Context("native_cpu:0")
        <Context native_cpu:0>
    """

    __slots__ = ("__weakref__", "_devices")

    def __init__(self, devices: Sequence[DeviceLike] | DeviceLike) -> None:
        given: Iterable[DeviceLike] = [devices] if isinstance(devices, Device | str) else devices
        if not isinstance(given, Iterable):
            raise InvalidArgumentError(f"a context takes devices, not {type(given).__name__}")
        found = tuple(Device(device) for device in given)
        if not found:
            raise InvalidArgumentError("a context needs at least one device")
        if len({device.backend for device in found}) > 1:
            raise InvalidArgumentError(f"the devices of a context are of one backend, not {', '.join(map(str, found))}")
        if len(set(found)) != len(found):
            raise InvalidArgumentError("a device is named twice")
        self._devices = found

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order in which they were given."""
        return self._devices

    def __eq__(self, other: object) -> bool:
        return self._devices == other._devices if isinstance(other, Context) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._devices)

    def __repr__(self) -> str:
        return f"<Context {', '.join(map(str, self._devices))}>"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Context cannot be pickled: it belongs to its process. Send the device, and make one there")


def resolve(device: DeviceLike | None, context: Context | None) -> tuple[Device, Context]:
    """Return the device and the context for a call's two optional arguments."""
    if context is not None and not isinstance(context, Context):
        raise InvalidArgumentError(f"context= takes a Context, not {type(context).__name__}")
    if device is None:
        device = context.devices[0] if context is not None else default_device()
    chosen = device if isinstance(device, Device) else Device(device)
    return chosen, resolve_context(chosen, context)


def resolve_context(device: Device, context: Context | None) -> Context:
    if context is None:
        return device.context
    if not isinstance(context, Context):
        raise InvalidArgumentError(f"context= takes a Context, not {type(context).__name__}")
    if device not in context.devices:
        raise InvalidArgumentError(f"{device} is not in {context!r}")
    return context
