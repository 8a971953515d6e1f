"""Settings: default < file < environment < flag, each with its origin; wrong ones are refused where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dsec.base.errors import InvalidRequestError
from dsec.cli import settings
from dsec.cli.context import Options
from dsec.cli.main import cli
from dsec.cli.settings import load, load_beside_node
from dsec.node.lock import hold_state
from dsec.node.running_settings import RUNNING_SETTINGS, keep_settings
from dsec.node.settings import NodeSettings, unknown_variables


@pytest.fixture(autouse=True)
def no_system_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(settings, "SYSTEM_FILE", tmp_path / "system.toml")


def _file(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_value_has_an_origin_and_later_sources_win(tmp_path: Path) -> None:
    file = _file(tmp_path / "c.toml", 'runtime = "runc"\ndefault_pids = 7\ndefault_memory_bytes = "1G"\n')
    options = Options(config_file=file, overrides=("default_pids=9",))
    loaded = load(options, {"DSEC_DEFAULT_PIDS": "8", "DSEC_DEFAULT_MEMORY_BYTES": "2G"})
    assert (loaded.settings.runtime, loaded.origins["runtime"]) == ("runc", str(file))
    assert (loaded.settings.default_memory_bytes, loaded.origins["default_memory_bytes"]) == (
        2 << 30,
        "DSEC_DEFAULT_MEMORY_BYTES",
    )
    assert (loaded.settings.default_pids, loaded.origins["default_pids"]) == (9, "--set")
    assert loaded.origins["first_host_id"] == "default"


def test_the_users_file_is_laid_over_the_systems(tmp_path: Path) -> None:
    _file(settings.SYSTEM_FILE, 'runtime = "runc"\ndefault_pids = 7\n')
    _file(tmp_path / "home" / ".config" / "dsec" / "config.toml", "default_pids = 8\n")
    loaded = load(Options(), {"HOME": str(tmp_path / "home")})
    assert (loaded.settings.runtime, loaded.settings.default_pids) == ("runc", 8)


def test_a_named_file_is_read_alone(tmp_path: Path) -> None:
    _file(settings.SYSTEM_FILE, "default_pids = 7\n")
    named = _file(tmp_path / "named.toml", 'runtime = "runc"\n')
    loaded = load(Options(), {"DSEC_CONFIG": str(named)})
    assert (loaded.settings.runtime, loaded.origins["default_pids"]) == ("runc", "default")


def test_the_state_directory_of_the_flag_wins(tmp_path: Path) -> None:
    loaded = load(Options(state_dir_option=tmp_path / "flag"), {"DSEC_STATE_DIR": str(tmp_path / "variable")})
    assert (loaded.state_dir, loaded.origins["state_dir"]) == (tmp_path / "flag", "--state-dir")
    loaded = load(Options(), {"DSEC_STATE_DIR": str(tmp_path / "variable")})
    assert (loaded.state_dir, loaded.origins["state_dir"]) == (tmp_path / "variable", "DSEC_STATE_DIR")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("default_pid = 7\n", ("there is no setting 'default_pid'", "did you mean 'default_pids'?")),
        ("zzz = 7\n", ("there is no setting 'zzz'", "`dsec config show` lists all settings")),
        ('default_pids = "many"\n', ("default_pids must be a whole number", "")),
        ("default_pids = -1\n", ("default_pids", "")),
        ("[node]\nruntime = 'x'\n", ("node must be a text or a number", "")),
        ("runtime = \n", ("is not TOML", "")),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(text: str, words: tuple[str, str], tmp_path: Path) -> None:
    file = _file(tmp_path / "c.toml", text)
    with pytest.raises(InvalidRequestError) as caught:
        load(Options(config_file=file), {})
    assert str(file) in caught.value.brief
    assert words[0] in caught.value.brief
    assert words[1] in caught.value.resolution


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="does not exist"):
        load(Options(config_file=tmp_path / "absent.toml"), {})


def test_a_wrong_flag_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="is not KEY=VALUE"):
        load(Options(overrides=("runtime",)), {})
    with pytest.raises(InvalidRequestError, match="--set: there is no setting"):
        load(Options(overrides=("runtme=crun",)), {})


def test_a_misspelt_variable_is_refused_with_what_was_meant() -> None:
    with pytest.raises(InvalidRequestError, match="DSEC_STATE_DRI") as caught:
        load(Options(), {"DSEC_STATE_DRI": "/x"})
    assert "DSEC_STATE_DIR" in caught.value.resolution


def test_variables_that_look_like_none_of_ours_are_mentioned_and_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unknown_variables({"DSEC_URL": "", "DSEC_TEST_FAST": "1", "DSEC_RUNTIME": "", "DSEC_BANANA": ""}) == {
        "DSEC_BANANA": None
    }
    monkeypatch.setenv("DSEC_BANANA", "1")
    result = CliRunner().invoke(cli, ["config", "show"])
    assert result.exit_code == 0
    assert "warning: the environment sets DSEC_BANANA" in result.stderr
    monkeypatch.setenv("DSEC_TOKN", "1")
    assert CliRunner().invoke(cli, ["config", "show"]).exit_code == 64


def test_what_is_not_set_is_as_the_node_that_runs_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_settings(NodeSettings(state_dir="/elsewhere", store="s3://node", tracker="a1=http://10.0.0.1:1"), tmp_path)
    options = Options(state_dir_option=tmp_path, overrides=("store=s3://mine",))
    assert load_beside_node(options).settings.tracker == ""
    with hold_state(tmp_path):
        found = load_beside_node(options)
        assert (found.settings.tracker, found.settings.store) == ("a1=http://10.0.0.1:1", "s3://mine")
        assert found.state_dir == tmp_path
        (tmp_path / RUNNING_SETTINGS).unlink()
        assert load_beside_node(options).settings.tracker == ""
