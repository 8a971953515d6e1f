"""Capabilities, defaults and admission."""

from __future__ import annotations

import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import CapabilityMissingError, HostDiskFullError, HostOutOfMemoryError, NodeUnavailableError
from dsec.base.units import GIB, MIB
from dsec.model.capability import LIMIT_CAPABILITIES, Capability, CapabilityReport
from dsec.model.sandbox import DEFAULT_RESOURCES, ExpiryAction, Lifetime, Network, Resources, SandboxSpec
from dsec.node.admission import NodeAdmission
from dsec.node.settings import NodeSettings
from dsec.node.validation import merged_reports, resolve_spec
from dsec.testing.memory_node import FakeHost


def reports(*available: Capability) -> dict[Capability, CapabilityReport]:
    return merged_reports(
        tuple(
            CapabilityReport(
                capability=capability, available=capability in available, reason="because", resolution="get it"
            )
            for capability in Capability
        )
    )


def test_all_limits_get_their_defaults_where_the_host_has_everything() -> None:
    spec = resolve_spec(SandboxSpec(), "sbx-a", NodeSettings(), reports(*Capability))
    assert spec.resources == DEFAULT_RESOURCES
    assert spec.hostname == "sbx-a"


@pytest.mark.parametrize(("field", "capability"), LIMIT_CAPABILITIES.items())
def test_a_default_without_its_capability_is_left_out_and_a_request_for_it_refused(
    field: str, capability: Capability
) -> None:
    found = reports(*(each for each in Capability if each is not capability))
    spec = resolve_spec(SandboxSpec(), "sbx-a", NodeSettings(), found)
    assert getattr(spec.resources, field) is None
    asked = SandboxSpec(resources=Resources(**{field: 64 * MIB}))
    with pytest.raises(CapabilityMissingError, match=f"{field} needs {capability.value}") as caught:
        resolve_spec(asked, "sbx-a", NodeSettings(), found)
    assert caught.value.detail == "because"
    assert caught.value.resolution == "get it"


def test_network_rules_need_their_capability() -> None:
    spec = SandboxSpec(network=Network(rules=("pypi",)))
    with pytest.raises(CapabilityMissingError, match="network_allow"):
        resolve_spec(spec, "sbx-a", NodeSettings(), reports())
    assert resolve_spec(spec, "sbx-a", NodeSettings(), reports(Capability.NETWORK_ALLOW)).network == spec.network


def test_a_lifetime_that_ends_in_a_pause_needs_its_capability() -> None:
    spec = SandboxSpec(lifetime=Lifetime(on_expiry=ExpiryAction.PAUSE))
    with pytest.raises(CapabilityMissingError, match="on_expiry needs pause"):
        resolve_spec(spec, "sbx-a", NodeSettings(), reports())
    assert resolve_spec(spec, "sbx-a", NodeSettings(), reports(Capability.PAUSE)).lifetime == spec.lifetime


def test_a_capability_that_one_driver_has_is_there() -> None:
    no = CapabilityReport(capability=Capability.DISK_QUOTA, available=False, reason="runtime has none")
    yes = CapabilityReport(capability=Capability.DISK_QUOTA, available=True, reason="btrfs")
    assert merged_reports((no,), (yes,)) == {Capability.DISK_QUOTA: yes}
    assert merged_reports((yes,), (no,)) == {Capability.DISK_QUOTA: yes}


def test_admission_names_what_is_short() -> None:
    def admit(live: int = 1, disk_bytes: int = 9 * GIB, memory_bytes: int = 9 * GIB) -> None:
        host = FakeHost(disk_bytes=disk_bytes, memory_bytes=memory_bytes)
        NodeAdmission(NodeSettings(maximum_sandboxes=2), host, ManualClock()).admit(live)

    admit()
    with pytest.raises(NodeUnavailableError, match="2 sandboxes"):
        admit(live=2)
    with pytest.raises(HostDiskFullError):
        admit(disk_bytes=1)
    with pytest.raises(HostOutOfMemoryError):
        admit(memory_bytes=1)
