"""A vendor's driver in this process. It is started at its first use."""

from __future__ import annotations

import abc
import threading
from typing import Generic, Protocol, TypeVar

from xpushare._native import forks
from xpushare.adapters.base import DeviceInfo
from xpushare.common.errors import ForkError, InvalidArgumentError

__all__ = ["G", "ProcessDriver"]


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
