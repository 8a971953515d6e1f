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
        manages_cgroups: it insists on making groups of the instance in every hierarchy itself, and on moving commands
            into them. After the start its record of them is emptied, so that commands stay in the group of their own
            that they were started in; we remove the groups.
        takes_compiled_filter: it accepts the annotation ``run.oci.seccomp_bpf_data``.
        takes_sealed_program: it is content to be executed from a sealed copy in memory (`dsec.linux.sealed`); from a
            file it copies itself and starts anew each time (1.3 of 2.6 ms).
        config_pipe: `run` reads its configuration from a pipe, before it does anything else. Otherwise a shell has to
            hold it back until it is in its control group.
        joins_user_namespace: it puts an instance into a user namespace that is there, and all others below it.
        masks_by_mounts: it mounts over any path below /proc and /sys as it is told.
        missing: capabilities it does not have, with the reason.
        console_socket: `exec` stays until the command ends when it sends the terminal over a socket. Otherwise it gets
            a terminal of ours to copy to and from.
        waits_for_children: `exec` copies the command's streams itself and ends only when nothing that the command left
            running holds them any more; `Process.wait` then waits for that, too.
        needs_threads: `exec` cannot do without threads of its own, which count in the sandbox: in one that holds as
            many processes as it may, it hangs until it is killed, or ends as if the command had ended with 2. So it is
            not started then. (A sandbox that fills up while `exec` works can still do that to it.)
        sends_signals: a command is the runtime's child on this host. Otherwise it cannot be signalled, and a terminal
            works but tells it of no interrupt and no change of size.
        passes_descriptors: `exec` hands further descriptors on to the command.
        own_kernel: the guest's processes are not processes of the host's kernel (gVisor): files are then reached
            through the overlay, which stays mounted on the host.
    """

    name: str
    global_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ("--detach",)
    manages_cgroups: bool = False
    takes_compiled_filter: bool = False
    takes_sealed_program: bool = False
    config_pipe: bool = False
    joins_user_namespace: bool = False
    masks_by_mounts: bool = False
    missing: tuple[tuple[Capability, str], ...] = ()
    console_socket: bool = True
    waits_for_children: bool = False
    needs_threads: bool = False
    sends_signals: bool = True
    passes_descriptors: bool = True
    own_kernel: bool = False


CRUN = Flavour(
    name="crun",
    global_flags=("--cgroup-manager=disabled",),
    takes_compiled_filter=True,
    takes_sealed_program=True,
    config_pipe=True,
    joins_user_namespace=True,
    masks_by_mounts=True,
)
RUNC = Flavour(name="runc", manages_cgroups=True, console_socket=False, waits_for_children=True, needs_threads=True)
RUNSC = Flavour(
    name="runsc",
    global_flags=("--platform=ptrace", "--network=none", "--ignore-cgroups", "--file-access=shared", "--oci-seccomp"),
    console_socket=False,
    own_kernel=True,
    sends_signals=False,
    passes_descriptors=False,
    missing=(
        (
            Capability.PROCESS_TREE_KILL,
            "gVisor's processes are not the host's, so that a command has no group of its own",
        ),
        (Capability.PIDS_LIMIT, "the host would count gVisor's own threads, and gVisor has no limit of its own"),
        (Capability.PRESSURE, "gVisor keeps no pressure figures for its guests"),
    ),
)

_UNTESTED = ((Capability.PROCESS_TREE_KILL, "it is not known whether this runtime leaves commands in their group"),)

FLAVOURS = {flavour.name: flavour for flavour in (CRUN, RUNC, RUNSC)}


def flavour_of(name: str) -> Flavour:
    """Return the flavour of a runtime's name or path; any other OCI runtime is taken to behave as runc does."""
    base = name.rpartition("/")[2]
    return FLAVOURS.get(base, Flavour(name=base, manages_cgroups=True, console_socket=False, missing=_UNTESTED))
