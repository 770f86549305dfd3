"""A Hive metastore of Spark's own jars, with a database of Derby, in a process of its own."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.support.waiting import wait_until


@contextmanager
def hive_metastore(folder: Path) -> Iterator[str]:
    """Yield the Thrift URI of an empty metastore."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    home = Path(str(pyspark.__file__)).parent
    java = shutil.which("java") or f"{os.environ.get('JAVA_HOME', '')}/bin/java"
    options = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/derby;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.metastore.warehouse.dir": (folder / "warehouse").as_uri(),
    }
    said = folder / "metastore.log"
    with (
        said.open("w") as log,
        subprocess.Popen(
            [
                java,
                f"-Dderby.stream.error.file={folder}/derby.log",
                "-Dhive.async.log.enabled=false",  # its logger is not among Spark's jars
                *("-cp", f"{home}/jars/*"),
                "org.apache.hadoop.hive.metastore.HiveMetaStore",
                *("-p", str(port)),
                *(
                    part
                    for name, value in options.items()
                    for part in ("--hiveconf", f"{name}={value}")
                ),
            ],
            stdout=log,
            stderr=log,
            cwd=folder,
        ) as process,
    ):
        try:
            assert wait_until(lambda: _listens(port) or process.poll() is not None, 120.0)
            assert process.poll() is None, said.read_text()[-2000:]
            yield f"thrift://127.0.0.1:{port}"
        finally:
            process.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
