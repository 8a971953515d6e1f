"""What a sandbox must be after any number of deaths of its node.

An operation that was answered happened; one that the death cut off happened or did not, and nothing in between. So the
model of one sandbox is a list of possible worlds: one while everything was answered, two or three after a cut. What the
next node shows must be one of them, and that one is then known.

Source of the idea: P-compositionality of linearizability checkers (Horn and Kroening, 2015), here with one client for
each sandbox, so that operations on it never overlap.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from dsec.base.errors import DsecError, NodeUnavailableError, UnknownOutcomeError
from dsec.model.process import CommandRequest, ProcessState
from dsec.model.sandbox import Lifetime, Resources, SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

HOME = "/home/user"
_MOST_POINTS = 4
_CHILDREN = 2
ORPHAN_MARK = "31536000.5"
"""Seconds that only foreground commands sleep which are never answered: none may outlive its request's node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One possible truth about a sandbox; `state` None: there is none."""

    state: SandboxState | None = None
    generation: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    maximum_s: float | None = 3600.0
    saved: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    """Files of each checkpoint, by its name."""
    clean: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Files of the clean state: none, or for a child those of the moment of its fork."""

    def rolled_back(self, point: str | None = None) -> World:
        files = self.clean if point is None else self.saved[point]
        return replace(self, state=SandboxState.READY, generation=self.generation + 1, files=files)

    def with_point(self, name: str) -> World:
        return replace(self, saved={**self.saved, name: self.files})

    def without_point(self, name: str) -> World:
        return replace(self, saved={key: files for key, files in self.saved.items() if key != name})

    def child(self, point: str | None) -> World:
        """Return what a child is that begins here, or at a checkpoint."""
        files = self.files if point is None else self.saved[point]
        return World(state=SandboxState.READY, files=files, clean=files, maximum_s=self.maximum_s)

    def with_file(self, name: str, content: bytes) -> World:
        return replace(self, state=SandboxState.READY, files={**self.files, name: content})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A background process that was acknowledged: what it prints and how it ends; None: it runs until killed."""

    generation: int
    output: bytes = b""
    exit_code: int | None = None


Operation = Callable[["Sandbox", SandboxService], Awaitable[None]]


class NodeDiedError(Exception):
    """The operation was cut off."""


class Sandbox:
    """One sandbox, its possible worlds, and its only client.

    Args:
        name: its id.
        chance: chooses operations and contents.
        image: to create it from.
    """

    def __init__(self, name: str, chance: random.Random, image: str) -> None:
        self.name = name
        self.worlds = [World()]
        self.jobs: dict[str, Job] = {}
        self.children: list[Sandbox] = []
        self.points = 0
        self._forks = 0
        self._fork_unsure = False
        self.trace: list[str] = []
        self._chance, self._image = chance, image
        self._spec = SandboxSpec(
            image=image,
            workdir=HOME,
            lifetime=Lifetime(maximum_s=3600.0),
            resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64, cpu_millis=2000),
        )

    @property
    def world(self) -> World:
        assert len(self.worlds) == 1, self.described()
        return self.worlds[0]

    def described(self) -> str:
        worlds = [f"  {world} with {_sizes(world.files)}" for world in self.worlds]
        return "\n".join([self.name, *worlds, *(f"  {line}" for line in self.trace[-30:])])

    # -- operations -------------------------------------------------------------------------------------------------

    async def step(self, service: SandboxService) -> None:
        """Do one random operation that must succeed in this world. Raises `NodeDiedError` when it was cut off."""
        if self.children and (self.gone() or self._chance.random() < 0.5):
            await self._step_of_child(service)
        elif self.world.state is None:
            await self._create(service)
        elif self.world.state is SandboxState.STOPPED:
            await self._remove(service)
        else:
            names, weights = zip(*_OPERATIONS, strict=True)
            await self._chance.choices(names, weights)[0](self, service)

    async def _attempt(self, what: str, call: Awaitable[object], *after: World) -> object:
        """Await an operation that leads to the last of `after`, if cut off to any of them or nowhere."""
        before = self.world
        self.trace.append(what)
        try:
            result = await call
        except (NodeUnavailableError, UnknownOutcomeError) as error:
            self.trace.append(f"  cut off: {error.code}")
            # An operation on a paused sandbox resumes it first.
            resumed = [replace(before, state=SandboxState.READY)] if before.state is SandboxState.PAUSED else []
            self.worlds = [before, *resumed, *after]
            raise NodeDiedError from error
        except DsecError as error:
            raise AssertionError(f"{what} failed: {error!r}\n{self.described()}") from error
        self.worlds = [after[-1]]
        if before.generation != after[-1].generation or after[-1].state in (None, SandboxState.STOPPED):
            self.jobs.clear()
        return result

    async def _create(self, service: SandboxService) -> None:
        ready = replace(World(), state=SandboxState.READY)
        await self._attempt("create", service.create(self._spec, sandbox_id=self.name), ready)

    async def _write(self, service: SandboxService) -> None:
        name = f"f{self._chance.randrange(3)}"
        content = self._chance.randbytes(self._chance.choice([0, 10, 5_000, 700_000]))
        call = service.write_file(self.name, f"{HOME}/{name}", content)
        await self._attempt(f"write {name} ({len(content)})", call, self.world.with_file(name, content))

    async def _append(self, service: SandboxService) -> None:
        name, more = "log", self._chance.randbytes(20)
        content = self.world.files.get(name, b"") + more
        call = service.write_file(self.name, f"{HOME}/{name}", more, append=True)
        await self._attempt("append", call, self.world.with_file(name, content))

    async def _run(self, service: SandboxService) -> None:
        content = b"%d" % self._chance.randrange(1 << 30)
        script = f"printf {content.decode()} >/tmp/new && mv /tmp/new {HOME}/r && printf done"
        request = CommandRequest(argv=("sh", "-c", script))
        call = service.run(self.name, request)
        result = await self._attempt("run", call, replace(self.world, state=SandboxState.READY),
                                     self.world.with_file("r", content))  # fmt: skip
        assert getattr(result, "stdout", None) == b"done", (result, self.described())

    async def _run_into_timeout(self, service: SandboxService) -> None:
        script = f"sleep {ORPHAN_MARK} & setsid sleep {ORPHAN_MARK} & exec sleep {ORPHAN_MARK}"
        call = service.run(self.name, CommandRequest(argv=("sh", "-c", script), timeout_s=0.2))
        result = await self._attempt("run into its timeout", call, replace(self.world, state=SandboxState.READY))
        assert result.status.timed_out, self.described()  # type: ignore[attr-defined]

    async def _start(self, service: SandboxService) -> None:
        """Start a process that prints and ends, or one that stays."""
        ready = replace(self.world, state=SandboxState.READY)
        if self._chance.random() < 0.6:
            lines = self._chance.randrange(1, 60)
            script = f"i=0; while [ $i -lt {lines} ]; do echo line-$i; i=$((i+1)); sleep 0.01; done; exit {lines}"
            output = b"".join(b"line-%d\n" % number for number in range(lines))
            job = Job(generation=ready.generation, output=output, exit_code=lines)
        else:
            script, job = "sleep 7777 & exec sleep 7777", Job(generation=ready.generation)
        call = service.start_process(self.name, CommandRequest(argv=("sh", "-c", script), timeout_s=None))
        info = await self._attempt(f"start {script!r}", call, ready)
        self.jobs[info.process_id] = job  # type: ignore[attr-defined]

    async def _wait(self, service: SandboxService) -> None:
        """Wait for the oldest process that ends by itself."""
        ready = replace(self.world, state=SandboxState.READY)
        for process_id, job in self.jobs.items():
            if job.exit_code is not None:
                call = service.wait_process(self.name, process_id, timeout_s=60.0)
                result = await self._attempt(f"wait for {process_id}", call, ready)
                got = (result.status.exit_code, result.stdout)  # type: ignore[attr-defined]
                assert got == (job.exit_code, job.output), f"{process_id}: {result}\n{self.described()}"
                del self.jobs[process_id]
                return

    async def _kill_job(self, service: SandboxService) -> None:
        ready = replace(self.world, state=SandboxState.READY)
        for process_id, job in self.jobs.items():
            if job.exit_code is None:
                del self.jobs[process_id]
                call = service.signal_process(self.name, process_id, 9)
                await self._attempt(f"kill {process_id}", call, ready)
                return

    async def _rollback(self, service: SandboxService) -> None:
        await self._attempt("rollback", service.rollback(self.name), self.world.rolled_back())

    async def _checkpoint(self, service: SandboxService) -> None:
        """Save the present state under the next name; at the most, forget the oldest instead."""
        points = list(self.world.saved)
        if len(points) >= _MOST_POINTS:
            removal = state_of(service).remove_checkpoint(self.name, points[0])
            await self._attempt(f"remove checkpoint {points[0]}", removal, self.world.without_point(points[0]))
            return
        self.points += 1
        name = f"p{self.points}"
        call = state_of(service).checkpoint(self.name, CheckpointRequest(name=name))
        await self._attempt(f"checkpoint {name}", call, self.world.with_point(name))

    async def _rollback_to_checkpoint(self, service: SandboxService) -> None:
        if self.world.saved:
            point = self._chance.choice(sorted(self.world.saved))
            call = service.rollback(self.name, snapshot=point)
            await self._attempt(f"rollback to {point}", call, self.world.rolled_back(point))

    async def _fork(self, service: SandboxService) -> None:
        """Make children of the present state or of a checkpoint, unless the last ones are still there."""
        if self.children or self.world.state is not SandboxState.READY:
            return
        self._forks += 1
        names = [f"{self.name}f{self._forks}c{number}" for number in range(1, _CHILDREN + 1)]
        point = self._chance.choice([None, *sorted(self.world.saved)])
        self.children = [Sandbox(name, random.Random(self._chance.random()), self._image) for name in names]
        born = self.world.child(point)
        for child in self.children:
            child.worlds = [World(), born]
            child.trace.append(f"forked from {self.name} at {point or 'its present state'}")
        self._fork_unsure = True
        request = ForkRequest(count=_CHILDREN, sandbox_ids=tuple(names), checkpoint=point)
        await self._attempt(f"fork {names} at {point}", state_of(service).fork(self.name, request), self.world)
        self._fork_unsure = False
        for child in self.children:
            child.worlds = [born]

    async def _step_of_child(self, service: SandboxService) -> None:
        """Let a child do something, or go: more often the latter, so that there are soon others."""
        child = self._chance.choice(self.children)
        if self._chance.random() < 0.3:
            await child._remove(service)
        else:
            await child.step(service)
        self._forget_gone()

    def _forget_gone(self) -> None:
        self.children = [child for child in self.children if not (child.gone() and not child.children)]

    def gone(self) -> bool:
        """Return whether it is sure that there is no such sandbox."""
        return all(world.state is None for world in self.worlds)

    async def _pause(self, service: SandboxService) -> None:
        await self._attempt("pause", service.pause(self.name), replace(self.world, state=SandboxState.PAUSED))

    async def _resume(self, service: SandboxService) -> None:
        await self._attempt("resume", service.resume(self.name), replace(self.world, state=SandboxState.READY))

    async def _extend(self, service: SandboxService) -> None:
        maximum_s = float(self._chance.randrange(4000, 90_000))
        call = service.extend(self.name, Lifetime(maximum_s=maximum_s))
        await self._attempt("extend", call, replace(self.world, maximum_s=maximum_s))

    async def _end_processes(self, service: SandboxService) -> None:
        jobs, self.jobs = self.jobs, {}
        call = service.end_processes(self.name)
        await self._attempt(f"end processes {list(jobs)}", call, replace(self.world, state=SandboxState.READY))

    async def _stop(self, service: SandboxService) -> None:
        await self._attempt("stop", service.stop(self.name), replace(self.world, state=SandboxState.STOPPED))

    async def _remove(self, service: SandboxService) -> None:
        stopped = replace(self.world, state=SandboxState.STOPPED)
        await self._attempt("remove", service.remove(self.name), stopped, World())

    # -- what the next node shows -----------------------------------------------------------------------------------

    async def recognise(self, service: SandboxService, info: SandboxInfo | None) -> None:
        """Find out which of the possible worlds is the true one. Raises `AssertionError` when none is."""
        shown = "nothing" if info is None else f"{info.state.value}, generation {info.generation}, {info.cause!r}"
        self.trace.append(f"-- the next node shows {shown}")
        candidates = [world for world in self.worlds if _looks_like(world, info)]
        assert candidates, f"none of the possible worlds: {shown}\n{self.described()}"
        if info is None or info.state is SandboxState.STOPPED:
            self.worlds = candidates[:1]
            self.jobs.clear()
            return
        self.jobs = {name: job for name, job in self.jobs.items() if job.generation == info.generation}
        points = {each.name for each in await state_of(service).list_checkpoints(self.name)}
        candidates = [world for world in candidates if world.saved.keys() == points]
        assert candidates, f"checkpoints of none of the possible worlds: {points}\n{self.described()}"
        await self._check_jobs(service)
        found = await self._files(service)
        candidates = [world for world in candidates if world.files == found]
        assert candidates, f"files of none of the possible worlds: {_sizes(found)}\n{self.described()}"
        self.worlds = [replace(candidates[-1], state=SandboxState.READY)]

    async def recognise_family(self, service: SandboxService, listed: dict[str, SandboxInfo]) -> None:
        """Recognise a sandbox and all that descend from it, and take them from what the node lists."""
        await self.recognise(service, listed.pop(self.name, None))
        if self._fork_unsure:
            there = [child.name for child in self.children if child.name in listed]
            assert len(there) in (0, len(self.children)), f"half a fork: {there}\n{self.described()}"
            self._fork_unsure = False
        for child in self.children:
            await child.recognise_family(service, listed)
        self._forget_gone()

    async def _files(self, service: SandboxService) -> dict[str, bytes]:
        found = {}
        for entry in await service.list_files(self.name, HOME):
            chunks = [chunk async for chunk in service.read_file(self.name, entry.path)]
            found[entry.name] = b"".join(chunks)
        return found

    async def _check_jobs(self, service: SandboxService) -> None:
        """What was acknowledged is listed, and runs or has ended as it had to."""
        listed = {info.process_id: info for info in await service.list_processes(self.name)}
        for process_id, job in self.jobs.items():
            info = listed.get(process_id)
            assert info is not None, f"{process_id} is lost\n{self.described()}"
            assert info.state is not ProcessState.UNKNOWN, f"{info}\n{self.described()}"
            if job.exit_code is None:
                assert info.state is ProcessState.RUNNING, f"{info}\n{self.described()}"
            elif info.status is not None:
                assert info.status.exit_code == job.exit_code, f"{info}\n{self.described()}"


def _sizes(files: Mapping[str, bytes]) -> dict[str, int]:
    return {name: len(content) for name, content in files.items()}


def _looks_like(world: World, info: SandboxInfo | None) -> bool:
    if info is None or world.state is None:
        return info is None and world.state is None
    same_life = info.spec.lifetime.maximum_s == world.maximum_s and info.generation == world.generation
    return info.state is world.state and same_life


_OPERATIONS: list[tuple[Operation, float]] = [
    (Sandbox._write, 4),
    (Sandbox._append, 2),
    (Sandbox._run, 4),
    (Sandbox._run_into_timeout, 1),
    (Sandbox._start, 4),
    (Sandbox._wait, 3),
    (Sandbox._kill_job, 1),
    (Sandbox._rollback, 3),
    (Sandbox._checkpoint, 4),
    (Sandbox._rollback_to_checkpoint, 3),
    (Sandbox._fork, 2),
    (Sandbox._pause, 3),
    (Sandbox._resume, 1),
    (Sandbox._extend, 1),
    (Sandbox._end_processes, 0.5),
    (Sandbox._stop, 1),
    (Sandbox._remove, 1),
]
