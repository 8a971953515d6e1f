"""Jobs: the sandboxes whose metadata say ``job: NAME``, listed, and paused or resumed as one operation.

An action is for the sandboxes that the job has when it begins: what is created meanwhile is left alone, and what ends
meanwhile is no failure. It runs in a task of the node's own, so that it goes on when nobody listens any more, and two
actions on one job take turns. Asking again does what is left. Source: the chapter, section 11.2.3: when accelerators
are preempted, the trainer pauses every sandbox of the job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectSendStream

from dsec.base.errors import DsecError, NotFoundError
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.model.state import JobAction, JobEvent, JobFailure, JobInfo, JobProgress, JobReport
from dsec.node import lifetimes
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox
from dsec.node.state import pausing

JOB_LABEL = "job"
"""The key in a sandbox's metadata that names its job."""

_RESUMES_AT_ONCE = 8
"""Thawing is a few writes to control groups and the journal; more at once only queue for a processor. Of pauses each
step is bounded (`Core.freezes`, `Core.releases`), so that all stand still before much memory has travelled."""

_OVER = frozenset({SandboxState.STOPPING, SandboxState.STOPPED, SandboxState.FAILED})


class Jobs:
    """The jobs of a node."""

    def __init__(self, core: Core, timer: lifetimes.Lifetimes) -> None:
        self._core = core
        self._timer = timer
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def infos(self) -> tuple[JobInfo, ...]:
        """Return the jobs that sandboxes of this node name, by name, with what these hold."""
        found: dict[str, list[Sandbox]] = defaultdict(list)
        for sandbox in self._core.registry.select(SandboxFilter()):
            name = sandbox.record.spec.metadata.get(JOB_LABEL)
            if name:
                found[name].append(sandbox)
        return tuple([await _info(name, found[name]) for name in sorted(found)])

    @asynccontextmanager
    async def change(
        self, job: str, action: JobAction, *, keep_memory: bool = False
    ) -> AsyncIterator[AsyncIterator[JobEvent]]:
        """Begin an action and hear how it goes; see `dsec.service.state.StateService.change_job`."""
        self._core.check_open()
        sandboxes = self._members(job)
        if not sandboxes:
            raise NotFoundError(
                f"no live sandbox belongs to the job {job[:80]!r}",
                resolution=f"label sandboxes with the metadata {JOB_LABEL}={job[:80]}; `dsec job ls` lists the jobs",
            )
        turn = self._turns.setdefault(job, anyio.Lock())
        # Room for everything that will be said: the action never waits for its listener.
        news, events = anyio.create_memory_object_stream[JobEvent](len(sandboxes) + 2)
        change = _Change(self._core, self._timer, job, action, sandboxes, news, keep_memory=keep_memory)

        async def work() -> None:
            with news:
                async with turn:
                    await change.run()

        self._core.supervisor.start(f"{action.value} job {job[:80]}", work)
        with events:
            yield events

    def _members(self, job: str) -> list[Sandbox]:
        if not job:
            return []
        query = SandboxFilter(metadata={JOB_LABEL: job})
        return [sandbox for sandbox in self._core.registry.select(query) if sandbox.state not in _OVER]


class _Change:
    """One action on the sandboxes of one job."""

    def __init__(
        self,
        core: Core,
        timer: lifetimes.Lifetimes,
        job: str,
        action: JobAction,
        sandboxes: list[Sandbox],
        news: MemoryObjectSendStream[JobEvent],
        *,
        keep_memory: bool,
    ) -> None:
        self._keep_memory = keep_memory
        self._core, self._timer = core, timer
        self._job, self._action, self._sandboxes, self._news = job, action, sandboxes, news
        self._wanted = SandboxState.PAUSED if action is JobAction.PAUSE else SandboxState.READY
        self._changed: list[str] = []
        self._unchanged: list[str] = []
        self._ended: list[str] = []
        self._failed: list[JobFailure] = []
        self._released = 0
        self._done = 0

    async def run(self) -> None:
        began_s = self._core.now_boot_s()
        self._say(JobProgress(done=0, total=len(self._sandboxes)))
        limiter = anyio.CapacityLimiter(math.inf if self._action is JobAction.PAUSE else _RESUMES_AT_ONCE)
        async with anyio.create_task_group() as group:
            for sandbox in self._sandboxes:
                group.start_soon(self._one, sandbox, limiter)
        self._say(
            JobReport(
                job=self._job,
                action=self._action,
                changed=tuple(sorted(self._changed)),
                unchanged=tuple(sorted(self._unchanged)),
                ended=tuple(sorted(self._ended)),
                failed=tuple(sorted(self._failed, key=lambda failure: failure.sandbox_id)),
                released_bytes=self._released,
                duration_s=self._core.now_boot_s() - began_s,
            )
        )

    async def _one(self, sandbox: Sandbox, limiter: anyio.CapacityLimiter) -> None:
        name = sandbox.sandbox_id
        async with limiter:
            try:
                (self._changed if await self._change(sandbox) else self._unchanged).append(name)
            except DsecError as error:
                if sandbox.forgotten or sandbox.state in _OVER:
                    self._ended.append(name)
                else:
                    self._failed.append(JobFailure(sandbox_id=name, code=error.code, brief=error.brief))
        self._done += 1
        self._say(JobProgress(done=self._done, total=len(self._sandboxes), sandbox_id=name))

    async def _change(self, sandbox: Sandbox) -> bool:
        """Bring one sandbox to the wanted state; return whether it was in another one."""
        was_so = sandbox.state is self._wanted
        if self._action is JobAction.PAUSE:
            # Also one that is paused: it may have memory left to give back.
            released = await pausing.pause(self._core, sandbox, keep_memory=self._keep_memory)
            self._released += released
        elif not was_so:
            await pausing.resume(self._core, sandbox, self._timer)
        return not was_so

    def _say(self, event: JobEvent) -> None:
        try:
            self._news.send_nowait(event)
        except anyio.BrokenResourceError:
            pass  # Whoever asked has left; the action goes on.


async def _info(name: str, sandboxes: list[Sandbox]) -> JobInfo:
    states: dict[str, list[str]] = defaultdict(list)
    memory = swap = 0
    for sandbox in sandboxes:
        states[sandbox.state.value].append(sandbox.sandbox_id)
        if sandbox.generation is None:
            continue
        try:
            usage = await sandbox.generation.instance.statistics()
        except DsecError:
            continue  # It ended since it was listed.
        memory += usage.memory_bytes or 0
        swap += usage.swap_bytes or 0
    return JobInfo(
        job=name,
        sandboxes={state: tuple(sorted(ids)) for state, ids in sorted(states.items())},
        memory_bytes=memory,
        swap_bytes=swap,
    )
