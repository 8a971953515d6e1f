"""The settings table and the struct say the same."""

from __future__ import annotations

import inspect

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError
from dsec.base.units import GIB
from dsec.model.process import MAXIMUM_OUTPUT_LIMIT_BYTES
from dsec.model.sandbox import DEFAULT_RESOURCES
from dsec.node.settings import SETTINGS, NodeSettings, environment_values, settings_from
from dsec.pools.admission import AdmissionPolicy


def test_every_field_has_one_row_and_is_described() -> None:
    fields = [field.name for field in msgspec.structs.fields(NodeSettings)]
    assert [row.name for row in SETTINGS] == fields
    for row in SETTINGS:
        assert row.variable == f"DSEC_{row.name.upper()}"
        assert row.unit
        assert row.reason
        assert f"\n    {row.name}: " in (inspect.getdoc(NodeSettings) or "")


def test_defaults_are_those_that_the_model_promises() -> None:
    settings = NodeSettings()
    for name in ("cpu_millis", "memory_bytes", "disk_bytes", "pids", "open_files"):
        assert getattr(settings, f"default_{name}") == getattr(DEFAULT_RESOURCES, name)
    assert settings.maximum_output_limit_bytes == MAXIMUM_OUTPUT_LIMIT_BYTES


def test_bounds_of_admission_are_those_of_the_policy() -> None:
    shared = {field.name for field in msgspec.structs.fields(AdmissionPolicy)} & {row.name for row in SETTINGS}
    assert len(shared) == 9
    for name in shared:
        assert getattr(NodeSettings(), name) == getattr(AdmissionPolicy(), name), name


def test_texts_are_parsed_with_their_units() -> None:
    values = environment_values({"DSEC_DEFAULT_MEMORY_BYTES": "3GiB", "DSEC_END_TIMEOUT_S": "2m", "OTHER": "1"})
    settings = settings_from({**values, "runtime": "runc", "default_pids": "7", "minimum_free_disk_bytes": "0"})
    assert settings.default_memory_bytes == 3 * GIB
    assert settings.end_timeout_s == 120
    assert (settings.runtime, settings.default_pids, settings.minimum_free_disk_bytes) == ("runc", 7, 0)


@pytest.mark.parametrize(
    ("name", "text"), [("colour", "red"), ("default_pids", "many"), ("default_memory_bytes", "2 elephants"),
                       ("default_pids", "0"), ("end_timeout_s", "0")],
)  # fmt: skip
def test_bad_texts_are_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name}|{text}"):
        settings_from({name: text})
