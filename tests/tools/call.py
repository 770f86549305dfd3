"""One run of a tool, as one types it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A line such as `kafka-topics --list`, with what the tool reads from standard input.

    `--bootstrap-server` is added after the tool's name, or where `@` stands. `{name}` is the path
    of the file of that name. The call is made within the scene it names. `is_ordered` compares the
    order of the lines too; `hides_figures` leaves numbers out.
    """

    line: str
    stdin: str = ""
    scene: str = ""
    is_ordered: bool = False
    hides_figures: bool = False

    @property
    def tool(self) -> str:
        return self.line.split(maxsplit=1)[0]

    @property
    def is_change(self) -> bool:
        """Return true if it requests a change to topics or configs."""
        return any(what in self.line for what in ("--create", "--alter", "--delete"))

    def arguments(self, bootstrap: str, files: Mapping[str, str]) -> list[str]:
        """Return the arguments against the broker at `bootstrap`."""
        words = shlex.split(self.line)[1:]
        at = ["--bootstrap-server", bootstrap]
        if "@" not in words:
            words = ["@", *words]
        place = words.index("@")
        words[place : place + 1] = at
        return [_with_files(word, files) for word in words]


def calls(*lines: str, scene: str = "") -> tuple[Call, ...]:
    """Return plain calls, one for each line."""
    return tuple(Call(line=line, scene=scene) for line in lines)


def _with_files(word: str, files: Mapping[str, str]) -> str:
    return files[word[1:-1]] if word.startswith("{") and word[1:-1] in files else word
