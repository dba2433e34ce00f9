"""Calls whose types the test of the language servers asks for, and calls that they refuse; nothing runs them."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import reveal_type

import numpy as np
import torch

import xpushare as xs


def total(array: xs.SharedArray) -> float:
    return float(np.asarray(array).sum())


def revealed(handle: xs.ArrayHandle) -> None:
    reveal_type(xs.share(np.ones(3)))  # ArrayHandle
    reveal_type(xs.attach(handle))  # SharedArray
    reveal_type(xs.attach(bytes(handle)))  # SharedArray
    reveal_type(xs.attach(str(handle)))  # SharedArray
    reveal_type(xs.attach(xs.lookup("weights")))  # SharedArray
    reveal_type(xs.attach(handle, like="numpy"))  # ndarray
    reveal_type(xs.attach(handle, like=np))  # ndarray
    reveal_type(xs.attach(handle, like="torch"))  # Tensor
    reveal_type(xs.attach(handle, like=torch))  # Tensor
    reveal_type(xs.attach(handle, like=total))  # float
    reveal_type(xs.empty(3).device.name)  # str
    reveal_type(xs.shares())  # Shares
    reveal_type(xs.Event().signal())  # int
    reveal_type(xs.Channel.open("frames").receive())  # Frame
    reveal_type(xs.wait_any([xs.Event()]))  # list[Event]
    reveal_type(xs.wait_any([(xs.Event(), 1)]))  # list[tuple[Event, int]]
    reveal_type(xs.zeros(3, "bfloat16"))  # SharedArray


def refused(array: xs.SharedArray) -> None:
    """Each line is an error to a type checker, or the comment that ignores it would be one."""
    xs.attach(array)  # pyright: ignore[reportArgumentType]
    xs.Channel("frames")  # pyright: ignore[reportArgumentType]
    xs.Channel(name="frames")  # pyright: ignore[reportArgumentType]
    xs.SharedArray((3,))  # pyright: ignore[reportArgumentType]
    xs.zeros(3, 7)  # pyright: ignore[reportArgumentType]
    xs.wait_any(xs.Event())  # pyright: ignore[reportArgumentType]
    array["w"]  # pyright: ignore[reportIndexIssue]
