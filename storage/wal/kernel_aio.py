"""Asynchronous writes by the kernel (`io_submit(2)`), reported by an eventfd: no thread in between.

A write by a thread costs two switches and two fights for the interpreter's lock; at a thousand
writes a second that was most of the log's time. The kernel's own queue needs one call to start a
write and one to collect those that have ended. It is asynchronous for direct I/O only, so a file
without `O_DIRECT` goes by threads, as does a machine whose kernel or architecture says no.

Numbers and layouts: `linux/aio_abi.h`.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import struct
from typing import NamedTuple


class _Calls(NamedTuple):
    """System call numbers of an architecture."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}
_IOCB = struct.Struct("=QIIHhIQQqQII")
_EVENT = struct.Struct("=QQqq")
_COMMAND_PWRITE = 1
_FLAG_EVENTFD = 1
assert _IOCB.size == 64


class _Write(NamedTuple):
    future: asyncio.Future[None]
    offset: int
    buffer: memoryview
    address: ctypes.c_char  # keeps the buffer where it is
    control_block: ctypes.Array[ctypes.c_char]


class KernelAio:
    """Writes to one file that was opened with `O_DIRECT`. Raises OSError where there is no AIO."""

    def __init__(self, fd: int, *, depth: int = 64) -> None:
        calls = _CALLS.get(platform.machine())
        if calls is None:
            raise OSError(errno.ENOSYS, f"no AIO on {platform.machine()}")
        self._calls = calls
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._fd = fd
        self._depth = depth
        self._loop = asyncio.get_running_loop()
        self._context = ctypes.c_ulong(0)
        self._call(calls.setup, ctypes.c_long(depth), ctypes.byref(self._context))
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._writes: dict[int, _Write] = {}
        self._next = 0
        self._idle: asyncio.Future[None] | None = None
        self._loop.add_reader(self._eventfd, self._collect)

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; the future is done when the kernel says it is, durable with `O_DSYNC`."""
        future: asyncio.Future[None] = self._loop.create_future()
        number = self._next = self._next + 1
        address = ctypes.c_char.from_buffer(buffer)
        control_block = ctypes.create_string_buffer(
            _IOCB.pack(
                number,
                0,
                0,
                _COMMAND_PWRITE,
                0,
                self._fd,
                ctypes.addressof(address),
                len(buffer),
                offset,
                0,
                _FLAG_EVENTFD,
                self._eventfd,
            ),
            _IOCB.size,
        )
        pointer = ctypes.c_void_p(ctypes.addressof(control_block))
        try:
            self._call(self._calls.submit, self._context, ctypes.c_long(1), ctypes.byref(pointer))
        except OSError as error:
            future.set_exception(error)
            return future
        self._writes[number] = _Write(future, offset, buffer, address, control_block)
        return future

    async def close(self) -> None:
        """Wait for the writes under way and let go. Cancelled, it leaves all as it is: the kernel
        has the buffers of a write that is stuck.
        """
        if self._writes:
            self._idle = self._loop.create_future()
            await self._idle
        self._loop.remove_reader(self._eventfd)
        os.close(self._eventfd)
        self._call(self._calls.destroy, self._context)

    def _collect(self) -> None:
        """Finish the futures of the writes that have ended."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        count = self._call(
            self._calls.getevents,
            self._context,
            ctypes.c_long(0),
            ctypes.c_long(self._depth),
            self._events,
            None,
        )
        ended = memoryview(self._events)[: count * _EVENT.size]
        for number, _, result, _ in _EVENT.iter_unpack(ended):
            self._finish(self._writes.pop(number), result)
        if not self._writes and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    @staticmethod
    def _finish(write: _Write, result: int) -> None:
        if write.future.done():
            return
        size = len(write.buffer)
        if result == size:
            write.future.set_result(None)
        elif result < 0:
            write.future.set_exception(OSError(-result, os.strerror(-result)))
        else:
            text = f"only {result} of {size} bytes written at {write.offset}"
            write.future.set_exception(OSError(errno.EIO, text))

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result
