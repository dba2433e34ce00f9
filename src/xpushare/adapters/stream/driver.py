"""A vendor's driver in this process, which is started at its first use, and drivers whose functions are called through
ctypes and return a code.
"""

from __future__ import annotations

import abc
import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from xpushare._native import forks
from xpushare.adapters.base import DeviceInfo
from xpushare.adapters.stream.background import Teardown
from xpushare.adapters.stream.hooks import Codes
from xpushare.common.errors import FeatureNotSupportedError, ForkError, InvalidArgumentError, XpuShareError
from xpushare.common.leaving import Stage, at_leave

__all__ = ["G", "LibraryDriver", "ProcessDriver", "address_of"]


class _Gpu(Protocol):
    ordinal: int
    uuid: str


G = TypeVar("G", bound=_Gpu)


class ProcessDriver(abc.ABC, Generic[G]):
    """Starts the driver once. Raises `ForkError` in a forked child if the parent had started it. `vendor` names the
    driver in messages. `hides` names the environment variable by which a user hides some of the driver's devices.
    """

    def __init__(self, vendor: str, hides: str) -> None:
        self._vendor = vendor
        self._hides = hides
        self._lock = threading.Lock()
        self._forks: int | None = None
        self._gpus: list[G] = []
        self._by_uuid: dict[str, G] = {}

    @abc.abstractmethod
    def _start(self) -> list[G]:
        """Load and initialise the driver. Returns its devices by ordinal."""

    def forked(self) -> ForkError:
        return ForkError(
            f"{self._vendor} was started before this process was forked, and cannot be used in the child: start it "
            "with the spawn or forkserver method"
        )

    @property
    def started(self) -> bool:
        """Return whether this process, not a parent of it, has started the driver."""
        return self._forks is not None and self._forks == forks()

    def start(self) -> None:
        if self._forks is None:
            with self._lock:
                if self._forks is None:
                    self._gpus = self._start()
                    self._by_uuid = {gpu.uuid: gpu for gpu in self._gpus}
                    self._forks = forks()
        if self._forks != forks():
            raise self.forked()

    def gpus(self) -> list[G]:
        if self._forks != forks():  # usually it has started already
            self.start()
        return self._gpus

    def by_uuid(self, uuid: str) -> G | None:
        if self._forks != forks():
            self.start()
        return self._by_uuid.get(uuid)

    def gpu(self, info: DeviceInfo) -> G:
        """Return the driver's device with the uuid of `info`. The device's ordinal may differ from the ordinal in the
        list of devices.
        """
        if self._forks != forks():  # usually it has started already
            self.start()
        found = self._by_uuid.get(info.uuid)
        if found is None:
            visible = ", ".join(f"{gpu.ordinal} is {gpu.uuid}" for gpu in self._gpus) or "none"
            raise InvalidArgumentError(
                f"the {self._vendor} driver does not let this process use GPU {info.uuid} (of its devices: {visible}); "
                f"a container or a job manager hides it, or {self._hides} was changed after the devices were listed"
            )
        return found


T = TypeVar("T")
_LEAVE: Final = 2.0  # seconds that an exiting process waits for teardowns


def address_of(structure: Any) -> int:
    """Return the address of a ctypes object, which the caller keeps alive."""
    return ctypes.addressof(structure)


class LibraryDriver(ProcessDriver[G], abc.ABC):
    """Calls the library. `functions` is set once `start` has returned.

    When the process exits, `ended` is set and nothing more is released: the exit frees everything.
    """

    codes: ClassVar[Codes]
    names: ClassVar[Mapping[int, str]]  # the names of the error codes
    missing: ClassVar[int]  # the code of a function that the library lacks
    not_ready: ClassVar[int]
    exiting: ClassVar[int]
    by_address: ClassVar[type]  # the structures that functions take only by address

    def __init__(self, vendor: str, hides: str) -> None:
        super().__init__(vendor, hides)
        self.ended = False
        self.functions: dict[str, Callable[..., int]] = {}
        self.why_none = "the driver has no device"
        self.refused: Mapping[str, str] = {}  # as in `Found`

    def load(self, library: str, functions: Iterable[tuple[str, Any, Sequence[Any]]]) -> Any:
        """Load the library. Of the given functions (name, result, arguments), declare those that the library has."""
        try:
            loaded = ctypes.CDLL(library)
        except OSError as error:
            raise FeatureNotSupportedError(f"starting {self._vendor}: the loader cannot be loaded: {error}") from error
        for name, result, arguments in functions:
            function = getattr(loaded, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, result
                self.functions[name] = function
        return loaded

    def end_after(self, teardown: Teardown) -> None:
        """When the process exits, finish background work and stop calling the driver: drivers end with the process, and
        some crash in threads that call them later. The wait for background work has its own time limit, because a crash
        is worse than a wait. The kernel frees what the program still holds.
        """

        def leave(_deadline: float) -> None:
            if self.started:
                teardown.settle(_LEAVE)
                self.end()

        at_leave(leave, Stage.STOP)

    def end(self) -> None:
        """Stop calling the driver."""
        self.ended = True

    def code(self, name: str, *arguments: Any) -> int:
        """Call a function, and return the driver's code."""
        if self.ended:
            return 0
        function = self.functions.get(name)
        if function is None:
            return self.missing
        return function(*[address_of(each) if isinstance(each, self.by_address) else each for each in arguments])

    def __call__(self, doing: str, name: str, *arguments: Any) -> None:
        """Call the library's function `name`. Raises an error of this package if the call failed."""
        code = self.code(name, *arguments)
        if code:
            raise self.error(doing, name, code)

    def asked(self, doing: str, name: str, *arguments: Any, into: T) -> T:
        """Make a call that writes a value to its last argument, and return the value."""
        self(doing, name, *arguments, address_of(into))
        return into

    def made(self, doing: str, name: str, *arguments: Any) -> int:
        """Make a call that writes a handle or an address to its last argument, and return the handle or address."""
        found = self.asked(doing, name, *arguments, into=ctypes.c_void_p()).value
        if self.ended:
            raise self.error(doing, name, self.exiting)
        return found or 0

    def several(self, doing: str, name: str, kind: Any, *arguments: Any) -> list[Any]:
        """Make a call that fills an array, after asking for the number of elements. Return the elements as a list."""
        count = ctypes.c_uint32()
        self(doing, name, *arguments, address_of(count), None)
        found = (kind * count.value)(*(kind() for _ in range(count.value)))
        if count.value:
            self(doing, name, *arguments, address_of(count), address_of(found))
        return list(found)[: count.value]

    def ready(self, doing: str, name: str, *arguments: Any) -> bool:
        """Make a call that asks whether work has finished, and return the answer."""
        code = self.code(name, *arguments)
        if code in (0, self.not_ready):
            return not code
        raise self.error(doing, name, code)

    def error(self, doing: str, call: str, code: int) -> XpuShareError:
        return self.codes.error(doing, call, self.names.get(code, "a code that this version does not know"), code)

    def address(self, name: str) -> int:
        """Return the address of a function, for native code. Return 0 if the library lacks the function."""
        function = self.functions.get(name)
        return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
