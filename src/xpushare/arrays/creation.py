"""Creation of arrays in shared memory: `empty` and `zeros`."""

from __future__ import annotations

import errno
import math
import os
from typing import TYPE_CHECKING, Any

from xpushare import adapters
from xpushare._native import fill
from xpushare.common.elements import as_dtype, as_shape, c_strides, check_dtype, dtype_words
from xpushare.common.errors import OutOfMemoryError
from xpushare.common.texts import readable
from xpushare.core import memory
from xpushare.core.declare import public
from xpushare.core.device import Device
from xpushare.objects.array import SharedArray, array_of, covered_by
from xpushare.sharing.table import label_argument, labels

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from xpushare.adapters.base import UsmKind
    from xpushare.core.device import DeviceLike

__all__ = ["empty", "new_array", "zeros"]


def new_array(
    shape: tuple[int, ...],
    dtype: Any,
    device: Device,
    kind: UsmKind = "device",
    *,
    isolated: bool = False,
    small: bool = False,
) -> SharedArray:
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        found = memory.allocate(kind, max(nbytes, 1), device, None, isolated, small)
    except OutOfMemoryError as error:
        what = f"{readable(nbytes)} (shape {shape}, {dtype_words(dtype)}) on {device}"
        why = os.strerror(errno.ENOMEM) if error.native == errno.ENOMEM and device.backend == adapters.HOST else error
        raise OutOfMemoryError(f"cannot allocate {what}: {why}", result=error.result, native=error.native) from error
    if not nbytes:
        found = found.replace(nbytes=0)
    return array_of(found, shape, dtype, c_strides(shape, dtype.itemsize), 0)


def empty(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    *,
    device: DeviceLike = "native_cpu:0",
    isolated: bool = False,
    label: str | None = None,
) -> SharedArray:
    """Make an array in memory that other processes can attach once it is shared.

    The values of the elements are unspecified, since earlier arrays of this process may have used the memory. `zeros`
    sets the elements to 0. The array owns the memory, and views and exports keep the memory alive.

    Small arrays on the host (up to 16 KiB) lie together in allocations of 256 KiB. A process that opens one such array
    can also read and write its neighbours. `handle.handle.exposed_nbytes` reports how many bytes it can access. Use
    `isolated=True` to prevent that.

    Args:
        shape: Number of elements per dimension.
        dtype: A NumPy dtype or its name. bfloat16 and the float8 family have their `ml_dtypes` names.
        device: Where the array lies. The default is the host, even if there is a GPU.
        isolated: Gives the array an allocation of its own that never serves another array.
        label: The array's name in `ls` and `shares`, at most 56 bytes. An array with a label is isolated, too.

    Returns:
        A C-ordered array.

    Raises:
        InvalidArgumentError: The shape or dtype is invalid, or the elements are Python objects.
        OutOfMemoryError: The device or the host does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> a = xs.empty((2, 3), "float32")
        >>> np.asarray(a)[:] = 1
        >>> a
        <SharedArray (2, 3) float32 on native_cpu:0>
    """
    found = as_dtype(dtype)
    check_dtype(found)
    text = label_argument(label)
    made = new_array(as_shape(shape), found, Device(device), isolated=isolated, small=not isolated and text is None)
    if text is not None:
        labels[covered_by(made)[0].allocation] = text
    return made


def zeros(
    shape: int | tuple[int, ...],
    dtype: DTypeLike = float,
    *,
    device: DeviceLike = "native_cpu:0",
    isolated: bool = False,
    label: str | None = None,
) -> SharedArray:
    """Make an array of zeros in memory that other processes can attach once it is shared.

    Args:
        shape: Number of elements per dimension.
        dtype: A NumPy dtype or its name. bfloat16 and the float8 family have their `ml_dtypes` names.
        device: Where the array lies. The default is the host, even if there is a GPU.
        isolated: Gives the array an allocation of its own that never serves another array.
        label: The array's name in `ls` and `shares`, at most 56 bytes. An array with a label is isolated, too.

    Returns:
        A C-ordered array, complete when the call returns.

    Raises:
        InvalidArgumentError: The shape or dtype is invalid, or the elements are Python objects.
        OutOfMemoryError: The device or the host does not have enough memory.
        DeviceError: The driver failed.

    Examples:
        >>> np.asarray(xs.zeros(3, int)).tolist()
        [0, 0, 0]
    """
    made = empty(shape, dtype, device=device, isolated=isolated, label=label)
    covered, _ = covered_by(made)
    if not made.nbytes or memory.is_zero(covered):
        return made
    if covered.allocation.host_accessible:
        fill(covered.address, b"\0", made.nbytes)
    else:
        from xpushare.core import queue as queues

        work = queues.create(made.device, None)
        work.driver.fill(covered.address, b"\0", made.nbytes, covered)
        queues.synchronize(work, None)
    return made


public(__name__, "empty", "zeros")
