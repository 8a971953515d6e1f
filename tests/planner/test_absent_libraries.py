"""Without the libraries of planning, what is missing is said as an error of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsec.base.errors import CapabilityMissingError
from dsec.cli.main import cli
from dsec.planner import quantity
from dsec.planner.outer import numeric

_EXAMPLE = str(Path(__file__).parents[2] / "examples" / "planner" / "platform.toml")


def test_units_need_pint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pint", None)
    quantity._registry.cache_clear()
    quantity.unit_scale.cache_clear()
    with pytest.raises(CapabilityMissingError) as caught:
        quantity.parse_quantity("5 s")
    assert "pip install 'dsec[planning]'" in caught.value.resolution


@pytest.mark.parametrize("library", ["numpy", "scipy.special"])
def test_workloads_need_numpy_and_scipy(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(CapabilityMissingError, match="libraries that are not installed"):
        numeric()
    for arguments in (["plan", _EXAMPLE], ["plan", "--check", _EXAMPLE]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == CapabilityMissingError.exit_code
        assert "dsec[planning]" in result.stderr
