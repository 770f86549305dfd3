"""Python processes forked off a template that has imported Lakehead.

A test that starts brokers or jobs to kill them pays for their imports at each start: half a second
for a broker, more than one for a job. A template pays once for all tests of a worker. What it forks
is a process as any other, with its own arguments, environment, folder and output; it is signalled,
killed and waited for as a `subprocess.Popen`. The first use starts the template, and it ends with
the tests. Tests of how a program starts use `subprocess` itself.
"""

import atexit
import functools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
_MESSAGE_BYTES_MAX = 1 << 20
_PRELOADED = (
    *("lakehead.broker.cli.process", "lakehead.broker.cli.start", "lakehead.broker.node"),
    *("lakehead.broker.process", "uvloop"),
)
"""What a broker imports at its start."""
_PRELOADED_BY_JOBS = (
    *("lakehead.lake.jobs.declared_tables", "lakehead.lake.jobs.materialize"),
    *("lakehead.lake.jobs.replay", "lakehead.lake.jobs.table_rebuild"),
    *("lakehead.broker.cli.process", "lakehead.broker.cli.app", "deltalake", "pytest"),
)


class ForkedPython(subprocess.Popen[Any]):
    """`subprocess.Popen` of `[sys.executable, "-m" or "-c", ...]`, forked off a template.

    With `jobs` the template has imported the jobs and what reads their tables, else what a broker
    needs.
    """

    def __init__(self, command: Sequence[str], *, jobs: bool = False, **options: Any) -> None:
        assert command[0] == sys.executable
        assert command[1] in ("-m", "-c")
        self._jobs = jobs
        self._statuses: socket.socket | None = None
        super().__init__(command, **options)

    def _execute_child(self, args: Sequence[str], *options: Any) -> None:
        """Fork instead of execute; `options` are those of `subprocess`, by position."""
        cwd, env = options[4], options[5]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = options[9:15]
        ours, theirs = socket.socketpair()
        with theirs:
            streams = [
                own if fd == -1 else fd for own, fd in enumerate((p2cread, c2pwrite, errwrite))
            ]
            environment = dict(os.environ if env is None else env)
            path = environment.get("PYTHONPATH", "")
            request = {"arguments": args[1:], "cwd": str(cwd or Path.cwd()), "env": environment}
            template = _template(path, self._jobs).connection
            socket.send_fds(template, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        self._statuses = ours
        self.pid = int.from_bytes(ours.recv(4), "big")
        assert self.pid, "the template has ended"
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite
        )

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            self._try_wait(os.WNOHANG)
        return self.returncode

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """Take the status that the template sends when the process has ended."""
        if self._statuses is None:
            return self.pid, 0
        self._statuses.setblocking(not flags & os.WNOHANG)
        try:
            sent = self._statuses.recv(4)
        except BlockingIOError:
            return 0, 0
        self._statuses.close()
        self._statuses = None
        status = int.from_bytes(sent, "big") if sent else signal.SIGKILL
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.pid, status


def run_forked(
    command: Sequence[str], *, timeout: float = 120, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """`subprocess.run` of a job or a command, forked off the template of jobs, with text."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ForkedPython(command, jobs=True, text=True, **pipes, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def killed_job(script: str, *arguments: str, failpoint: str) -> int:
    """Run a script of Python with a fail-point armed; its exit status."""
    environment = job_environment(failpoint)
    return run_forked(
        [sys.executable, "-c", script, *arguments], env=environment, cwd=ROOT
    ).returncode


def lakehead_command(*arguments: str, failpoint: str = "") -> "subprocess.CompletedProcess[str]":
    """Run a command of `lakehead`, with a fail-point armed if one is given."""
    command = [sys.executable, "-m", "lakehead", *arguments]
    return run_forked(command, env=job_environment(failpoint))


def job_environment(failpoint: str = "") -> Mapping[str, str]:
    """The environment of a job with a fail-point armed."""
    return os.environ | {"PYTHONPATH": str(ROOT), "LAKEHEAD_FAILPOINT": failpoint}


class _Template:
    """A template's process and the connection to it, which ends it."""

    def __init__(self, python_path: str, names: Sequence[str]) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES_MAX)
        with theirs:
            here = str(Path(__file__).resolve())
            self._process = subprocess.Popen(
                [sys.executable, here, str(theirs.fileno()), *names],
                env=os.environ | {"PYTHONPATH": python_path, "LAKEHEAD_FAILPOINT": ""},
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def end(self) -> None:
        """End the template; what it has forked goes on."""
        self.connection.close()
        self._process.wait(30)


@functools.cache
def _template(python_path: str, jobs: bool) -> _Template:
    made = _Template(python_path, _PRELOADED_BY_JOBS if jobs else _PRELOADED)
    atexit.register(made.end)
    return made


# ------------------------------------------------------------------- in the template's process


def serve(connection: socket.socket) -> None:
    """Fork a process for each request, and send its id and, when it has ended, its status."""
    waiting: dict[int, socket.socket] = {}
    wakes, wake = socket.socketpair()
    for one in (wakes, wake):
        one.setblocking(False)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakes in ready:
                wakes.recv(1024)
                _send_statuses(waiting)
            if connection in ready:
                message, fds, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 4)
                if not message:
                    return
                status = socket.socket(fileno=fds.pop())
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for inner in (connection, wakes, wake, status, *waiting.values()):
                        inner.close()
                    selector.close()
                    _become(json.loads(message), fds)
                for fd in fds:
                    os.close(fd)
                status.sendall(pid.to_bytes(4, "big"))
                waiting[pid] = status


def _send_statuses(waiting: dict[int, socket.socket]) -> None:
    """Reap what has ended."""
    while waiting:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with waiting.pop(pid) as connection:
            try:
                connection.sendall(status.to_bytes(4, "big"))
            except BrokenPipeError:
                pass  # the test does not wait for it


def _become(request: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    """Run the module or the script as `python` does, and end."""
    for own, fd in enumerate(fds):
        os.dup2(fd, own)
    for fd in fds:
        if fd > 2:
            os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    kind, program, *arguments = request["arguments"]
    from lakehead.storage import failpoints

    failpoints._trigger = failpoints._Trigger(os.environ.get("LAKEHEAD_FAILPOINT", ""))
    status = 1
    try:
        if kind == "-m":
            sys.argv = [program, *arguments]
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *arguments]
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status & 0xFF)


if __name__ == "__main__":
    sys.path[0] = ""
    for name in sys.argv[2:]:
        import_module(name)
    import gc

    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
