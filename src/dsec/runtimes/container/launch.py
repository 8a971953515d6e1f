"""One run of the OCI runtime that makes an instance, from its start in the instance's group until the init runs."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass

from dsec.base.errors import RuntimeFailedError
from dsec.runtimes.container.child import GATE_DESCRIPTOR, HostChild, bounded_read, gated, read_to_end
from dsec.runtimes.container.command import (
    DOCUMENT_DESCRIPTOR,
    LOG_DESCRIPTOR,
    USER_NAMESPACE_DESCRIPTOR,
    Pipes,
    RuntimeProgram,
    write_document,
)
from dsec.runtimes.container.failures import classify, logged_errors
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.record import forget_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The runtime configuration of an instance, encoded.

    Attributes:
        run: for the runtime's start.
        kept: for the commands that it starts later; the same but for descriptors that it has only at the start.
    """

    run: bytes
    kept: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a run of the runtime needs.

    Attributes:
        instance_id: of the instance, which has its group, root and bundle.
        paths: its run directory.
        program: the OCI runtime.
        cgroups: the node's groups.
        configuration: of the instance; runtimes that take none from a pipe find it in the bundle.
        user_namespace: descriptor of the namespace to enter, which stays the caller's; None: the runtime makes one.
    """

    instance_id: str
    paths: InstancePaths
    program: RuntimeProgram
    cgroups: Groups
    configuration: Configuration
    user_namespace: int | None

    async def run(self) -> None:
        """Run it inside the instance's group, before it does anything, and return when the init runs.

        Raises:
            DsecError: what the runtime said.
            OSError: it could not be started.
        """
        pipes = Pipes()
        try:
            pipes.empty(0)
            pipes.sink(1)
            pipes.sink(2)
            pipes.output("log", LOG_DESCRIPTOR)
            if self.user_namespace is not None:
                pipes.child[USER_NAMESPACE_DESCRIPTOR] = os.dup(self.user_namespace)
            child = self._start(pipes)
            pipes.close_child()
            try:
                self.cgroups.attach(child.pid, self.instance_id)
            except BaseException:
                child.kill()
                raise
            try:
                self._let_go(pipes)
                await self._supervise(child, pipes.ours["log"])
            except BaseException:
                # Not the child alone: the runtime is several processes, and the others would go on.
                self.cgroups.kill(self.instance_id)
                raise
        finally:
            pipes.close()

    def _start(self, pipes: Pipes) -> HostChild:
        """Start the runtime, which waits until it is let go."""
        arguments = self.program.run_arguments(self.paths, self.instance_id)
        if self.program.flavour.config_pipe:
            pipes.input("document", DOCUMENT_DESCRIPTOR, blocking=True)
            return HostChild.start(self.program.executed, arguments, pipes.child, scratch=self.paths.directory)
        pipes.input("gate", GATE_DESCRIPTOR)
        shell, arguments = gated(self.program.path, arguments)
        return HostChild.start(shell, arguments, pipes.child, scratch=self.paths.directory)

    def _let_go(self, pipes: Pipes) -> None:
        if not self.program.flavour.config_pipe:
            os.write(pipes.ours["gate"], b"\n")
            return
        try:
            write_document(pipes.take("document"), self.configuration.run)
        except BrokenPipeError:
            pass  # It has ended already, and its log says why.

    async def _supervise(self, child: HostChild, log: int) -> None:
        flavour = self.program.flavour
        code = await child.wait()
        said = bounded_read(log)
        if code == 0 and not flavour.own_kernel:
            # The runtime ends a moment before the init it made becomes the init program, and a command that comes in
            # between is refused (EPERM from setns). Until then that process, too, holds the log pipe.
            said += await read_to_end(log)
        message = logged_errors(said)
        if code != 0:
            raise classify(message or f"{flavour.name} run ended with {code} and said nothing")
        if not self.cgroups.contains(read_pid(self.paths), self.instance_id):
            raise RuntimeFailedError(f"{flavour.name} moved the init of {self.instance_id} out of its control group")
        if flavour.manages_cgroups:
            forget_groups(self.paths.runtime_state / self.instance_id / "state.json")
        if flavour.config_pipe:
            # crun kept what it could read of the pipe a second time: nothing. By renaming, so that it is there in
            # whole or not at all: `was_launched` looks for it.
            new = self.paths.runtime_config.with_suffix(".new")
            new.write_bytes(self.configuration.kept)
            new.replace(self.paths.runtime_config)


def read_pid(paths: InstancePaths) -> int:
    """Return the pid of an instance's init. Raises `RuntimeFailedError` when the runtime left none."""
    try:
        return int(paths.pid.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError) as error:
        raise RuntimeFailedError(f"{paths.directory.name}: the OCI runtime left no pid") from error


def was_launched(paths: InstancePaths, program: RuntimeProgram) -> bool:
    """Whether the run that made an instance came to its end, so that commands can be started in it."""
    if not program.flavour.config_pipe:
        return True
    try:
        return paths.runtime_config.stat().st_size > 0
    except FileNotFoundError:
        return False


def compiled_filter(paths: InstancePaths) -> str | None:
    """Return the filter that crun compiled for its first instance: later ones need not compile it again (1 ms)."""
    try:
        return base64.b64encode((paths.runtime_config.parent / "seccomp.bpf").read_bytes()).decode()
    except FileNotFoundError:
        return None
