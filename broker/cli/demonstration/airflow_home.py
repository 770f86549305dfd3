"""A folder in which a local Airflow lives: its settings, its password, the ports that it takes."""

import json
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from lakehead.broker.cli.demonstration.bound_process import bound

MARK = "LAKEHEAD_LOCAL_AIRFLOW"
"""Environment of every process of such an Airflow: its folder."""
USER = "admin"
_AT_ONCE = 4
_OF_PROCESSES = ("LAKEHEAD_SUPERVISOR", "LAKEHEAD_FAILPOINT", "LAKEHEAD_PATH", MARK)
_REQUEST_TIMEOUT_S = 60.0
_DEAD_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowHome:
    """The places of an Airflow: the folder of its database, logs and password, the port of its web
    page on this machine, and the folder of its DAGs.
    """

    folder: Path
    dags: Path
    port: int

    @property
    def url(self) -> str:
        """Address of the web page."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        """The log of all of its processes."""
        return self.folder / "airflow.log"

    def password(self) -> str:
        """Return the password of `USER`, made at the first call and kept."""
        path = self._passwords
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(json.dumps({USER: secrets.token_urlsafe(9)}))
        word: str = json.loads(path.read_text())[USER]
        return word

    def write_command(self) -> Path:
        """Return a folder with the `airflow` that `airflow standalone` is to find: one whose parts
        end when it ends, that begins no task before there is an API for it, and serves no logs to
        other machines.
        """
        folder = self.folder / "bin"
        folder.mkdir(exist_ok=True)
        script = folder / "airflow"
        command = [str(Path(sys.executable).parent / "airflow")]
        at_once = shlex.join(bound(command))
        later = shlex.join(bound(command, after_port=self.port))
        script.write_text(
            "#!/bin/sh\n"
            'case "$1" in\n'
            f'scheduler | triggerer) exec {later} "$@" --skip-serve-logs ;;\n'
            f'*) exec {at_once} "$@" ;;\n'
            "esac\n"
        )
        script.chmod(0o755)
        return folder

    def environment(
        self,
        base: Mapping[str, str],
        *,
        connection: Mapping[str, object],
        variables: Mapping[str, object],
        keeps_settings: bool,
    ) -> dict[str, str]:
        """Return the environment of its processes: `variables`, above them `base` with what it has
        of Variables and connections, above that the settings, and `connection` as lakehead_default.

        `keeps_settings`: jobs get the caller's `LAKEHEAD_` variables, such as those of encryption,
        as commands do. They are of the caller's cluster, and so not for one of the demo.
        """
        # Settings of another Airflow would have this one write to its database.
        ours = _OF_PROCESSES if keeps_settings else ("LAKEHEAD_",)
        foreign = ("AIRFLOW_HOME", "AIRFLOW__", *ours)
        kept = {k: v for k, v in base.items() if not k.startswith(foreign)}
        settings = {
            "CORE__DAGS_FOLDER": str(self.dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__PARALLELISM": str(_AT_ONCE),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self._passwords),
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self.port),
            "API__BASE_URL": self.url,
            "API__WORKERS": "1",
            "WORKERS__EXECUTION_API_TIMEOUT": str(_REQUEST_TIMEOUT_S),
            **_log_levels(),
            "LOGGING__COLORED_CONSOLE_LOG": "False",
            # A task whose worker was killed is tried again soon, not after five minutes.
            "SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(_DEAD_S),
        }
        given = {f"AIRFLOW_VAR_{k.upper()}": json.dumps(v) for k, v in variables.items()}
        return {
            **given,
            **kept,
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW_CONN_LAKEHEAD_DEFAULT": json.dumps(connection),
            "NO_PROXY": ",".join(filter(None, (base.get("NO_PROXY"), "127.0.0.1", "localhost"))),
            "PATH": f"{self.write_command()}:{base.get('PATH', '')}",
            MARK: str(self.folder),
            "SPT_NOENV": "1",  # titles of processes leave the environment as it is, and so the mark
        }

    @property
    def _passwords(self) -> Path:
        return self.folder / "passwords.json"


def _log_levels() -> dict[str, str]:
    """Return settings by which tasks write more to their own logs than other processes to theirs.
    Airflow before 3.2 has one level for all.
    """
    if version("apache-airflow-core").startswith(("3.0.", "3.1.")):
        return {"LOGGING__LOGGING_LEVEL": "INFO"}
    return {
        "LOGGING__LOGGING_LEVEL": "WARNING",
        "LOGGING__NAMESPACE_LEVELS": "airflow.task=INFO connectors=INFO",
    }


def free_port(wanted: int) -> int:
    """Return the first free port: one of `wanted`, else any other."""
    for port in (wanted, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = listener.getsockname()[1]
            return found
    raise OSError("no free port")
