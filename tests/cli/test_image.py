"""`dsec image`, on a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dsec.base.errors import AlreadyExistsError, BuildFailedError, InvalidRequestError
from dsec.cli.main import cli
from dsec.images.build import BuildRequest
from dsec.images.staging import remove_tree


class Command:
    """The command line on one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, ["--state-dir", str(self.state), "image", *arguments])


@pytest.fixture
def dsec(tmp_path: Path) -> Iterator[Command]:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/file").write_text("1")
    yield Command(tmp_path / "state")
    remove_tree(tmp_path / "state")


def test_import_prints_nothing_but_data_on_stdout(dsec: Command, tmp_path: Path) -> None:
    result = dsec("import", str(tmp_path / "tree"), "--name", "mine:v1", "--env", "A=b", "--user", "7", "--json")
    assert result.exit_code == 0
    image = json.loads(result.stdout)
    assert image["name"] == "mine:v1"
    assert image["config"].items() >= {"env": {"A": "b"}, "workdir": "/", "user": "7"}.items()
    assert "importing" in result.stderr


def test_hooks_are_words_of_a_command(dsec: Command, tmp_path: Path) -> None:
    result = dsec("import", str(tmp_path / "tree"), "--name", "mine", "--export-hook", "dump 'a b'", "--json")
    assert json.loads(result.stdout)["config"]["hooks"]["export_state"] == ["dump", "a b"]
    refused = dsec("import", str(tmp_path / "tree"), "--name", "mine", "--export-hook", "dump 'a b")
    assert refused.exit_code == InvalidRequestError.exit_code


def test_hooks_stand_above_those_that_an_image_brings(dsec: Command, tmp_path: Path) -> None:
    dsec("import", str(tmp_path / "tree"), "--name", "base", "--export-hook", "dump", "--import-hook", "load")
    dsec("export", "base", str(tmp_path / "layout"))
    result = dsec("import", str(tmp_path / "layout"), "--name", "mine", "--export-hook", "dump --all", "--json")
    hooks = json.loads(result.stdout)["config"]["hooks"]
    assert (hooks["export_state"], hooks["import_state"]) == (["dump", "--all"], ["load"])
    shown = dsec("inspect", "mine").stdout
    assert "dump --all" in shown
    assert "load" in shown


def test_rules_of_the_clean_state_come_from_a_file_that_the_template_begins(dsec: Command, tmp_path: Path) -> None:
    (tmp_path / "tree/etc").mkdir()
    (tmp_path / "tree/etc/passwd").write_text("root:x:0:0::/root:/bin/sh")
    tree = str(tmp_path / "tree")
    assert dsec("import", tree, "--name", "plain").exit_code == 0
    (tmp_path / "rules.toml").write_text(dsec("fingerprint-template", "plain").stdout)
    made = dsec("import", tree, "--name", "mine", "--fingerprint", str(tmp_path / "rules.toml"), "--json")
    assert json.loads(made.stdout)["config"]["fingerprint"]["contents"] == ["/etc/passwd"]
    shown = dsec("inspect", "mine").stdout
    assert "/etc/passwd" in shown
    (tmp_path / "rules.toml").write_text("content = []")
    refused = dsec("import", tree, "--name", "other", "--fingerprint", str(tmp_path / "rules.toml"))
    assert refused.exit_code == 64
    assert "did you mean `contents`" in refused.stderr
    assert dsec("fingerprint-template", "nothing").exit_code == 66


def test_an_export_is_an_import_of_the_same_image(dsec: Command, tmp_path: Path) -> None:
    imported = dsec("import", str(tmp_path / "tree"), "--name", "mine", "--env", "A=b", "--json")
    target = tmp_path / "new" / "layout"
    exported = json.loads(dsec("export", "mine", str(target), "--json").stdout)
    assert (exported["image"], exported["directory"], exported["layers"]) == ("mine", str(target), 1)
    assert (target / "blobs/sha256" / exported["digest"].removeprefix("sha256:")).is_file()
    back = dsec("import", str(target), "--name", "back", "--json")
    assert json.loads(back.stdout)["image_id"] == json.loads(imported.stdout)["image_id"]
    assert dsec("export", "mine", str(target)).exit_code == AlreadyExistsError.exit_code
    assert dsec("export", "nothing", str(tmp_path / "x")).exit_code == 66
    assert not (tmp_path / "x").exists()
    assert [path.name for path in target.parent.iterdir()] == ["layout"]


def test_images_are_listed_tagged_inspected_and_removed(dsec: Command, tmp_path: Path) -> None:
    assert json.loads(dsec("ls", "--json").stdout) == []
    assert dsec("import", str(tmp_path / "tree"), "--name", "mine").exit_code == 0
    assert dsec("tag", "mine", "other:v2").exit_code == 0
    assert [image["name"] for image in json.loads(dsec("ls", "--json").stdout)] == ["mine", "other:v2"]
    assert "other:v2" in dsec("ls").stdout
    shown = dsec("inspect", "mine", "--verify")
    assert shown.exit_code == 0
    assert "sha256:" in shown.stdout
    assert dsec("rm", "mine", "other:v2").exit_code == 0
    assert list((dsec.state / "images/layers").iterdir()) == []


def test_unknown_image_exits_with_its_code_and_says_what_to_do(dsec: Command) -> None:
    result = dsec("inspect", "nothing")
    assert result.exit_code == 66
    assert "dsec image import" in result.stderr
    assert dsec("rm", "nothing").exit_code == 66


def test_what_cannot_be_imported_exits_with_its_code(dsec: Command, tmp_path: Path) -> None:
    assert dsec("import", str(tmp_path / "missing"), "--name", "mine").exit_code == 66
    (tmp_path / "text").write_text("no archive")
    assert dsec("import", str(tmp_path / "text"), "--name", "mine").exit_code == 64
    assert dsec("import", str(tmp_path / "tree"), "--name", "Not A Name").exit_code == 64


def test_build_without_dockerfile_is_an_error(dsec: Command, tmp_path: Path) -> None:
    result = dsec("build", str(tmp_path / "tree"), "-t", "mine")
    assert result.exit_code in (66, 69)  # 69: building needs root.


@pytest.mark.root
def test_pruning_says_how_much_that_was(dsec: Command) -> None:
    (dsec.state / "images/build/storage").mkdir(parents=True)
    (dsec.state / "images/build/storage/kept").write_bytes(b"x" * 8192)
    freed_bytes = json.loads(dsec("prune", "--json").stdout)["freed_bytes"]
    assert freed_bytes >= 8192
    assert not (dsec.state / "images/build/storage").exists()
    assert "freed 0" in dsec("prune").stderr


def test_what_a_build_said_is_not_said_again_by_its_error(
    dsec: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(store: object, request: BuildRequest) -> None:
        request.progress("the reason")
        raise BuildFailedError("it failed", detail="$ the line\nthe reason")

    monkeypatch.setattr("dsec.images.build.build", failing)
    result = dsec("build", str(tmp_path), "-t", "mine")
    assert result.exit_code == 65
    assert result.stderr.count("the reason") == 1
    assert "$ the line" in result.stderr
    argv = ["--error-format", "json", "--state-dir", str(dsec.state), "image", "build", str(tmp_path), "-t", "mine"]
    said = CliRunner().invoke(cli, argv).stderr.splitlines()[-1]
    assert json.loads(said)["error"]["detail"] == "$ the line\nthe reason"
