"""The engine without Kafka: the program in the documentation runs, and again on what it left."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "storage" / "streams-and-caches.md"


def test_the_documented_program_appends_reads_and_finds_its_data_again(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    path = tmp_path / "program.py"
    path.write_text(program)
    outputs = [
        subprocess.run(
            [sys.executable, str(path), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split("\n")
        for _ in range(2)
    ]
    assert outputs[0][:3] == ["appended at 0", "0 b'one'", "1 b'two'"]
    assert outputs[1][0] == "appended at 2"
    assert outputs[1][-3:-1] == ["2 b'one'", "3 b'two'"]
