"""What differs between OCI runtimes: flags, who manages cgroups, and what they cannot do."""

from __future__ import annotations

from dataclasses import dataclass

from dsec.model.capability import Capability


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One OCI runtime program.

    Attributes:
        name: its program name; looked up in PATH.
        global_flags: flags before the sub-command.
        run_flags: flags of `run` that detach it.
        manages_cgroups: it insists on making and removing the instance's v1 groups itself; ours are then joined and
            removed as far as it leaves them.
        takes_compiled_filter: it accepts the annotation ``run.oci.seccomp_bpf_data``.
        missing: capabilities it does not have, with the reason.
        own_kernel: the guest's processes are not processes of the host's kernel (gVisor): files are then reached
            through the overlay, which stays mounted on the host.
    """

    name: str
    global_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ("--detach",)
    manages_cgroups: bool = False
    takes_compiled_filter: bool = False
    missing: tuple[tuple[Capability, str], ...] = ()
    own_kernel: bool = False


CRUN = Flavour(name="crun", global_flags=("--cgroup-manager=disabled",), takes_compiled_filter=True)
RUNC = Flavour(name="runc", manages_cgroups=True)
RUNSC = Flavour(
    name="runsc",
    global_flags=("--platform=ptrace", "--network=none", "--ignore-cgroups", "--file-access=shared"),
    own_kernel=True,
    missing=(
        (
            Capability.PROCESS_TREE_KILL,
            "gVisor's processes are not the host's, so that a command has no group of its own",
        ),
        (Capability.PRESSURE, "gVisor keeps no pressure figures for its guests"),
    ),
)

FLAVOURS = {flavour.name: flavour for flavour in (CRUN, RUNC, RUNSC)}


def flavour_of(name: str) -> Flavour:
    """Return the flavour of a runtime name; any other OCI runtime is taken to behave as runc does."""
    return FLAVOURS.get(name, Flavour(name=name, manages_cgroups=True))
