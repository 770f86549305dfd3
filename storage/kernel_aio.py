"""Asynchronous transfers by the kernel (`io_submit(2)`), reported by an eventfd: no thread between.

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
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec


class _Calls(NamedTuple):
    """System call numbers of an architecture."""

    setup: int
    destroy: int
    getevents: int
    submit: int


_CALLS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}
_IOCB = struct.Struct("=QIIHhIQQqQII")
_EVENT = struct.Struct("=QQqq")
_COMMAND_PREAD, _COMMAND_PWRITE = 0, 1
_FLAG_EVENTFD = 1
_ControlBlock = ctypes.c_char * _IOCB.size
assert _IOCB.size == 64


class _Transfer(msgspec.Struct, frozen=True):
    future: asyncio.Future[Any]
    is_write: bool
    offset: int
    buffer: memoryview
    address: ctypes.c_char  # keeps the buffer where it is
    control_block: ctypes.Array[ctypes.c_char]


_LEFT: list[dict[int, _Transfer]] = []
"""The transfers of queues that were dropped while the kernel had them."""


class KernelAio:
    """Writes and reads of files that were opened with `O_DIRECT`, for one event loop. A file may be
    closed as soon as a call has returned: the kernel has it until the transfer has ended.

    Raises OSError where there is no AIO.
    """

    def __init__(self, *, depth: int = 64) -> None:
        calls = _CALLS.get(platform.machine())
        if calls is None:
            raise OSError(errno.ENOSYS, f"no AIO on {platform.machine()}")
        self._calls = calls
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.restype = ctypes.c_long
        self._depth = depth
        self.loop = asyncio.get_running_loop()
        self._events = ctypes.create_string_buffer(_EVENT.size * depth)
        self._transfers: dict[int, _Transfer] = {}
        self._next = 0
        self._process = os.getpid()
        self._idle: asyncio.Future[None] | None = None
        self._context = ctypes.c_ulong(0)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._call(calls.setup, ctypes.c_long(depth), ctypes.byref(self._context))
        except OSError:
            os.close(self._eventfd)
            self._eventfd = -1
            raise
        self.loop.add_reader(self._eventfd, self.collect)

    def write(self, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        """Start a write; the future is done when the kernel says it is, durable with `O_DSYNC`."""
        return self._start(_COMMAND_PWRITE, fd, offset, buffer)

    def read(self, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[int]:
        """Start a read; the future has how many bytes came, fewer at the end of the file."""
        return self._start(_COMMAND_PREAD, fd, offset, buffer)

    def _start(self, command: int, fd: int, offset: int, buffer: memoryview) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self.loop.create_future()
        if self._eventfd < 0:
            future.set_exception(OSError(errno.EBADF, "the kernel's queue is closed"))
            return future
        number = self._next = self._next + 1
        address = ctypes.c_char.from_buffer(buffer)
        control_block = _ControlBlock.from_buffer_copy(
            _IOCB.pack(
                number,
                0,
                0,
                command,
                0,
                fd,
                ctypes.addressof(address),
                len(buffer),
                offset,
                0,
                _FLAG_EVENTFD,
                self._eventfd,
            )
        )
        pointer = ctypes.c_void_p(ctypes.addressof(control_block))
        try:
            self._call(self._calls.submit, self._context, ctypes.c_long(1), ctypes.byref(pointer))
        except OSError as error:
            future.set_exception(error)
            return future
        is_write = command == _COMMAND_PWRITE
        self._transfers[number] = _Transfer(
            future, is_write, offset, buffer, address, control_block
        )
        return future

    async def close(self) -> None:
        """Wait for the transfers under way and let go; a later one is an error. Cancelled, it
        leaves all as it is: the kernel has the buffers of one that is stuck.
        """
        if self._eventfd < 0:
            return
        if not self.loop.is_closed():
            while self._transfers:  # one that ends may be followed by the next
                self._idle = self.loop.create_future()
                await self._idle
            self.loop.remove_reader(self._eventfd)
        self._let_go()

    def collect(self) -> None:
        """Finish the futures of the transfers that have ended. The event loop calls this."""
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        for transfer, result in self._ended():
            self._finish(transfer, result)
        if not self._transfers and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _ended(self) -> Iterator[tuple[_Transfer, int]]:
        """Yield all transfers that have ended, with their results: the kernel takes more than
        `depth` at once, and reports none of them twice.
        """
        count = self._depth
        while count == self._depth:
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
                yield self._transfers.pop(number), result

    def _let_go(self) -> None:
        """Give the queue back; the kernel waits for what is under way."""
        self._call(self._calls.destroy, self._context)
        os.close(self._eventfd)
        self._eventfd = -1

    def __del__(self) -> None:
        """Let go where the event loop has ended without `close`. The kernel still writes into the
        buffers of reads under way: those are kept. A child of a fork has no queue.
        """
        if getattr(self, "_eventfd", -1) < 0 or sys.is_finalizing():
            return
        if self._process == os.getpid():
            for _ in self._ended():
                pass
            if not self._transfers:
                self._let_go()
                return
            _LEFT.append(self._transfers)
        os.close(self._eventfd)

    @staticmethod
    def _finish(transfer: _Transfer, result: int) -> None:
        future, size = transfer.future, len(transfer.buffer)
        if future.done():
            return
        if result < 0:
            future.set_exception(OSError(-result, os.strerror(-result)))
        elif not transfer.is_write:
            future.set_result(result)
        elif result == size:
            future.set_result(None)
        else:
            text = f"only {result} of {size} bytes written at {transfer.offset}"
            future.set_exception(OSError(errno.EIO, text))

    def _call(self, number: int, *arguments: object) -> int:
        result: int = self._syscall(ctypes.c_long(number), *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result


def open_aio() -> KernelAio | None:
    """Return a queue of the kernel's for the running event loop; None where there is none."""
    try:
        return KernelAio()
    except OSError:
        return None
