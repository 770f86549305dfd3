"""Recorded terminals as pictures: `scripts/terminal-svg`."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
SIZE_MAX = 100_000


def texts(path: Path) -> list[str]:
    """The lines of a picture."""
    return ["".join(one.itertext()) for one in ET.parse(path).iter(f"{SVG}text")]


def test_a_picture_has_each_line_with_its_colours_and_no_control_code(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    printed = r"print('\x1b[1;32mgreen\x1b[0m & <plain>\x1b[?25l'); print('x' * 150)"
    subprocess.run(
        [ROOT / "scripts/terminal-svg", picture, sys.executable, "-c", printed],
        check=True,
        capture_output=True,
        timeout=60,
    )
    command, coloured, *long = texts(picture)
    assert command.startswith("$ python")
    assert coloured == "green & <plain>"
    assert long == ["x" * 100, "x" * 50]
    assert '<tspan class="b g">green</tspan>' in picture.read_text()


def test_a_command_that_fails_leaves_no_picture(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    program: list[str | Path] = [ROOT / "scripts/terminal-svg", picture]
    command = [*program, sys.executable, "-c", "raise SystemExit(3)"]
    assert subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 3
    assert not picture.exists()


def test_the_picture_of_the_demo_is_whole_and_small() -> None:
    picture = ROOT / "docs/images/demo.svg"
    assert picture.stat().st_size < SIZE_MAX
    lines = texts(picture)
    assert lines[0] == "$ lakehead demo"
    assert any("The same result three times" in line for line in lines)
    assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "")
