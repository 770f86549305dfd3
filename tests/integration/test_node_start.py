"""The order of a node's start."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = """
import asyncio, sys
from lakehead.broker.node import start_node
from lakehead.broker.settings import Settings
from lakehead.storage.object_store.memory import MemoryStore

loaded = []

class WatchedStore(MemoryStore):
    async def create(self, key, pieces):
        if "/log/" in key:
            loaded.append("lakehead.broker.api.fetch" in sys.modules)
        await super().create(key, pieces)

async def main():
    node = await start_node(
        Settings(data=sys.argv[1], port=0, wal_size=16 << 20), store=WatchedStore()
    )
    await node.close()
    print("loaded at entries of the metadata:", loaded)

asyncio.run(main())
"""


def test_the_code_of_the_apis_is_loaded_before_a_node_has_to_send_heartbeats(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "entries of the metadata: [True" in done.stdout, done.stdout
    assert "False" not in done.stdout
