"""The scenarios that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from dsec.base.errors import NotFoundError
from dsec.sim.scenario_file import ScenarioFile, parse_scenario, read_scenario

_FOLDER = "scenarios"
_END = ".toml"


def shipped_names() -> list[str]:
    """Return the names of all shipped scenarios."""
    found = (entry.name for entry in files("dsec.sim").joinpath(_FOLDER).iterdir())
    return sorted(name.removesuffix(_END) for name in found if name.endswith(_END))


def shipped_text(name: str) -> str:
    """Return the text of a shipped scenario.

    Raises:
        NotFoundError: there is none of this name.
    """
    if name not in shipped_names():
        raise NotFoundError(
            f"no scenario is named {name!r}",
            resolution=f"give a file that ends in {_END}, or one of: {', '.join(shipped_names())}",
        )
    return files("dsec.sim").joinpath(_FOLDER, name + _END).read_text(encoding="utf8")


def find_scenario(name: str) -> ScenarioFile:
    """Read a scenario: a shipped one by its name, any other by its path.

    Raises:
        NotFoundError: there is none.
        InvalidRequestError: the file is wrong; the brief names the line.
    """
    if name.endswith(_END) or "/" in name:
        return read_scenario(Path(name))
    return parse_scenario(name, shipped_text(name), where=name + _END)
