"""Which archive of classes a JVM is given, and that a file that is not whole is none."""

from pathlib import Path

import pytest

from lakehead.lake.spark import archive_options


@pytest.fixture(autouse=True)
def no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "SPARK_SUBMIT_OPTS"):
        monkeypatch.delenv(name, raising=False)


class Machine:
    """A folder of archives, a Java and a folder of jars."""

    def __init__(self, root: Path) -> None:
        self.folder, self.java, self.jars = root / "cache", root / "java", root / "jars"
        self.folder.mkdir(parents=True)
        self.jars.mkdir()
        self.java.write_text("java")
        (self.jars / "a.jar").write_text("a")

    def options(self, *, make: bool = True) -> str:
        return archive_options(self.folder, self.java, self.jars, make=make)

    def archive(self) -> Path:
        """Return where a JVM is to write the archive, or finds it."""
        return Path(self.options().split('"')[1].partition("=")[2])


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_archive_is_made_once_and_then_used(machine: Machine) -> None:
    assert machine.options(make=False) == ""
    assert machine.options().startswith('"-XX:ArchiveClassesAtExit=')
    machine.archive().write_bytes(b"\xa8\xba\x0b\xf0 classes")
    for make in (False, True):
        assert machine.options(make=make) == f'"-XX:SharedArchiveFile={machine.archive()}"'


@pytest.mark.parametrize("content", [b"", b"\0", b"\0" * 4096])
def test_an_archive_that_a_jvm_did_not_finish_is_made_again(
    machine: Machine, content: bytes
) -> None:
    """A JVM writes the header, at the file's begin, after all else."""
    machine.archive().write_bytes(content)
    assert machine.options(make=False) == ""
    assert machine.options().startswith('"-XX:ArchiveClassesAtExit=')


def test_another_java_or_another_jar_has_another_archive(machine: Machine) -> None:
    names = {machine.archive()}
    machine.java.write_text("java, another release")
    names.add(machine.archive())
    (machine.jars / "a.jar").write_text("ab")
    names.add(machine.archive())
    (machine.jars / "b.jar").write_text("b")
    names.add(machine.archive())
    assert len(names) == 4


def test_archives_of_releases_that_are_gone_do_not_fill_the_disk(machine: Machine) -> None:
    for number in range(9):
        machine.java.write_text("x" * number)
        machine.archive().write_bytes(b"classes")
        assert machine.archive().exists()
    assert len(list(machine.folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JAVA_TOOL_OPTIONS", "-Dx=y -Xshare:off"),
        ("JDK_JAVA_OPTIONS", "-XX:SharedArchiveFile=/mine.jsa"),
        ("SPARK_SUBMIT_OPTS", "-XX:ArchiveClassesAtExit=/mine.jsa"),
    ],
)
def test_the_users_own_options_about_archives_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert machine.options() == ""


@pytest.mark.parametrize("name", ["a:b", 'a"b', "a\\b"])
def test_a_folder_that_no_option_can_name_has_no_archive(tmp_path: Path, name: str) -> None:
    assert Machine(tmp_path / name).options() == ""


def test_a_folder_with_a_space_is_one_option(tmp_path: Path) -> None:
    assert Machine(tmp_path / "a b").options().count('"') == 2
