"""Which releases of the AWS provider `make tf-test` tries: of each major one the newest."""

from pathlib import Path

import pytest

from tests.terraform.terraform import NotHere, environment, providers

PLACE = "registry/hashicorp/aws"


def mirrored(folder: Path, *releases: str) -> Path:
    for release in releases:
        platform = folder / PLACE / release / "linux_amd64"
        platform.mkdir(parents=True)
        (platform / "provider").write_text(release)
    return folder


def test_each_major_release_is_tried_by_its_newest(tmp_path: Path) -> None:
    folder = mirrored(tmp_path, "5.9.0", "5.100.0", "6.2.0", "6.25.0", "4.67.0")
    assert providers(folder) == ["5.100.0", "6.25.0"]
    assert providers(tmp_path / "none") == []


def test_terraform_sees_the_release_that_is_tried_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHEAD_TF_MIRROR", str(mirrored(tmp_path / "m", "5.100.0", "6.25.0")))
    for release, seen in (("", "5.100.0"), ("6.25.0", "6.25.0")):
        folder = tmp_path / f"of {release}"
        environment(folder, release)
        found = list((folder / "providers").glob(f"{PLACE}/*/linux_amd64/provider"))
        assert [one.read_text() for one in found] == [seen]
        assert str(folder / "providers") in (folder / "cli.tfrc").read_text()


def test_a_mirror_without_the_provider_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHEAD_TF_MIRROR", str(mirrored(tmp_path, "4.67.0")))
    with pytest.raises(NotHere, match="no mirror with the AWS provider"):
        environment(tmp_path / "x")
