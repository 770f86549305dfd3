"""A real Airflow for tests: `lakehead airflow` as a process, and its REST API."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(
    r"(?P<url>http://127\.0\.0\.1:\d+)\s+user (?P<user>\S+)\s+password (?P<word>\S+)"
)
READY_S = 1000.0
RUN_S = 300.0
_POLL_S = 0.5
_HEARD_S = 3.0
"""Time after which a scheduler has heard that a task waits."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a DAG."""

    dag_id: str
    run_id: str

    @property
    def path(self) -> str:
        return f"/api/v2/dags/{self.dag_id}/dagRuns/{self.run_id}"


class AirflowClient:
    """What a user does in the web page, done by the API."""

    def __init__(self, url: str, user: str, word: str, log_file: Path) -> None:
        self.url = url
        self.log_file = log_file
        self.token = ""
        self.token = self.ask("/auth/token", {"username": user, "password": word})["access_token"]

    def ask(self, path: str, body: Any = None, *, method: str | None = None) -> Any:
        """Call the API. Raises urllib.error.HTTPError."""
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"},
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    @property
    def version(self) -> tuple[int, ...]:
        """Major and minor version of this Airflow."""
        return tuple(int(one) for one in self.ask("/api/v2/version")["version"].split(".")[:2])

    def connect(self, conn_id: str, path: str, **extra: Any) -> None:
        """Make a connection."""
        connection = {
            "connection_id": conn_id,
            "conn_type": "lakehead",
            "extra": json.dumps({"path": path, **extra} if path else extra),
        }
        self.ask("/api/v2/connections", connection)

    def trigger(self, dag_id: str, **conf: Any) -> Run:
        """Start a run."""
        answer = self.ask(f"/api/v2/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": conf})
        return Run(dag_id, answer["dag_run_id"])

    def state(self, run: Run) -> str:
        return str(self.ask(run.path)["state"])

    def ended(self, run: Run, deadline_s: float = RUN_S) -> str:
        """Wait for a run; return its state."""
        deadline = time.monotonic() + deadline_s
        while (state := self.state(run)) not in {"success", "failed"}:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{run} is {state}: {self.tasks(run)}")
            time.sleep(_POLL_S)
        return state

    def succeeds(self, dag_id: str, **conf: Any) -> Run:
        """Run a DAG; it has to succeed."""
        run = self.trigger(dag_id, **conf)
        self.succeeded(run)
        return run

    def succeeded(self, run: Run, deadline_s: float = RUN_S) -> None:
        """Wait for a run; it has to succeed, else the states and logs of its tasks are shown."""
        if self.ended(run, deadline_s) != "success":
            logs = [self.log(run, one) for one in self.tasks(run)]
            raise AssertionError("\n".join([f"{run} failed: {self.states(run)}", *logs]))

    def tasks(self, run: Run, task_id: str = "") -> list[dict[str, Any]]:
        """The task instances of a run, or of one of its tasks."""
        found = self.ask(f"{run.path}/taskInstances?limit=100")["task_instances"]
        return [one for one in found if task_id in {"", one["task_id"]}]

    def states(self, run: Run) -> dict[str, set[str]]:
        """The states of each task's instances."""
        states: dict[str, set[str]] = {}
        for one in self.tasks(run):
            states.setdefault(one["task_id"], set()).add(one["state"])
        return states

    def awaited(self, run: Run, task_id: str, state: str) -> dict[str, Any]:
        """Wait for a task instance in a state; return it."""
        deadline = time.monotonic() + RUN_S
        while time.monotonic() < deadline:
            for one in self.tasks(run, task_id):
                if one["state"] == state:
                    return one
            time.sleep(0.1)
        raise TimeoutError(f"{task_id} is not {state}: {self.tasks(run)}")

    def log(self, run: Run, task: Mapping[str, Any], number: int | None = None) -> str:
        """What an instance wrote to its log, in its last try or in one of them."""
        number = number or max(task["try_number"], 1)
        path = f"{run.path}/taskInstances/{task['task_id']}/logs/{number}"
        try:
            lines = self.ask(f"{path}?map_index={task['map_index']}&full_content=true")["content"]
        except urllib.error.HTTPError as error:
            return f"(no log: {error})"
        return "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)

    def result(self, run: Run, task_id: str) -> Any:
        """What a task returned."""
        path = f"{run.path}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.ask(f"{path}?deserialize=false")["value"]

    def decided(self, dag_id: str, choice: str, **conf: Any) -> tuple[Run, str]:
        """Run a DAG whose plan is approved or rejected; return the run that had the decision, and
        what was shown for it. Airflow 3.0 takes an approval as the digest in a second run.
        """
        run = self.trigger(dag_id, **conf)
        if self.version >= (3, 1):
            shown = self.answer(run, choice)
            self.succeeded(run)
            return run, shown
        self.succeeded(run)
        [plan], [approve] = self.tasks(run, "plan"), self.tasks(run, "approve")
        if choice == "Approve":
            [digest] = set(re.findall(r"approved_plan=(\w+)", self.log(run, approve)))
            run = self.succeeds(dag_id, **conf, approved_plan=digest)
        return run, self.log(run, plan)

    def answer(self, run: Run, choice: str) -> str:
        """Wait until a run asks for approval, give it, and return what was shown.

        An answer that comes before the scheduler has heard that the task waits makes it try the
        task again, and ask again, until no try is left: each try waits for some seconds, as it does
        for people.
        """
        shown, path = "", f"{run.path}/taskInstances/approve/-1/hitlDetails"
        seen: dict[int, float] = {}
        deadline = time.monotonic() + RUN_S
        while time.monotonic() < deadline:
            [task] = self.tasks(run, "approve")
            if task["state"] in {"success", "failed"}:
                return shown
            now = time.monotonic()
            if (
                task["state"] in {"awaiting_input", "deferred"}
                and now - seen.setdefault(task["try_number"], now) >= _HEARD_S
            ):
                detail = self.ask(path)
                if not detail["response_received"]:
                    shown = f"{detail['subject']}\n{detail['body']}"
                    answer = {"chosen_options": [choice], "params_input": {}}
                    self.ask(path, answer, method="PATCH")
            time.sleep(_POLL_S)
        raise TimeoutError(f"nothing is asked, or no answer heard: {self.tasks(run)}")


@dataclass(slots=True)
class LocalAirflow:
    """`lakehead airflow` that runs; `said` is what it prints to."""

    process: "subprocess.Popen[bytes]"
    said: Path
    folder: Path

    def client(self) -> AirflowClient:
        """Wait until it is ready, and return its API."""
        deadline = time.monotonic() + READY_S
        log = self.folder / "airflow" / "airflow.log"
        while (found := READY.search(self.said.read_text())) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = log.read_text()[-3000:] if log.exists() else ""
                raise RuntimeError(f"not ready: {self.said.read_text()}\n{words}")
            time.sleep(_POLL_S)
        return AirflowClient(found["url"], found["user"], found["word"], log)


@contextmanager
def local_airflow(
    folder: Path, *arguments: str, variable: Mapping[str, Any] | None = None
) -> Iterator[LocalAirflow]:
    """Run `lakehead airflow FOLDER ...` on a free port, with the Variable `lakehead_dags`."""
    foreign = ("AIRFLOW", "LAKEHEAD_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    environment |= {"PYTHONPATH": str(ROOT), "LAKEHEAD_SUPERVISOR": str(os.getpid())}
    if variable is not None:
        environment["AIRFLOW_VAR_LAKEHEAD_DAGS"] = json.dumps(variable)
    said = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.said")
    command = [sys.executable, "-m", "lakehead", "airflow", str(folder), "--port", "0"]
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=ROOT,
        )
    try:
        yield LocalAirflow(process=process, said=said, folder=folder)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def processes_of(folder: Path) -> list[str]:
    """The commands that run with this folder's mark, or name it."""
    found = []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        if str(folder) in command or f"={folder}".encode() in environment:
            found.append(command)
    return found
