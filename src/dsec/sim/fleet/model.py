"""The life of every sandbox of a simulated fleet: asked for, placed, created, used, ended or lost.

This is the shell that carries messages and watches the time. What decides is imported: `dsec.placement` chooses nodes
and says when a creation is tried
again, `dsec.pools.admission` says whether a node takes one more, `dsec.scheduling.bursting` what goes to the cloud.

Each method whose first argument is the time is an event.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from pathlib import Path

from dsec.placement.creation import Done, GiveUp, Pause, Send, Step
from dsec.sim.arrivals import plan_arrivals
from dsec.sim.calendar import Calendar, without_garbage_collection
from dsec.sim.distributions import Streams
from dsec.sim.fleet.bursts import CloudGate
from dsec.sim.fleet.images import Fetching
from dsec.sim.fleet.interference import slowdown
from dsec.sim.fleet.links import Link
from dsec.sim.fleet.measures import Measures
from dsec.sim.fleet.node import SimNode, Work, make_nodes
from dsec.sim.fleet.sandbox import SimSandbox, WorkloadState
from dsec.sim.fleet.scenario import Failure, FleetScenario
from dsec.sim.fleet.schedulers import Schedulers
from dsec.sim.result import Result

_STEPS_OF_PROGRESS = 200


class FleetModel:
    """The state of one run.

    Args:
        scenario: what to simulate.
        seed: of all randomness.
        directory: where a trace's path begins.
    """

    def __init__(self, scenario: FleetScenario, seed: int, *, directory: Path = Path()) -> None:
        self._scenario, self._seed = scenario, seed
        self._streams = streams = Streams(seed)
        self.nodes = make_nodes(scenario.nodes)
        self._by_name = {node.name: node for node in self.nodes}
        self._kinds = [self._kind(number, streams, directory) for number in range(len(scenario.workloads))]
        self.calendar = Calendar(self._events_per_s())
        self.measures = Measures(self.nodes, sum(group.racks for group in scenario.nodes))
        self._origin = Link(scenario.origin_bytes_per_s)
        self._store = Link(scenario.store_bytes_per_s)
        peer_choice = random.Random(streams.integer("peers"))
        self._images = Fetching(self.calendar, self._origin, peer_choice, self.measures, self._have_image)
        schedulers_die = any(failure.kind == "scheduler" for failure in scenario.failures)
        self._schedulers = Schedulers(
            scenario.scheduling, self.calendar, self.nodes, streams, self._carry, may_die=schedulers_die
        )
        self._create_s = {group.name: streams.draws(f"create {group.name}", group.create_s) for group in scenario.nodes}
        self._gate = None if scenario.bursting is None else CloudGate(scenario.bursting, self.nodes)
        self._ids = count()
        self._idempotent = scenario.scheduling.idempotent
        # A bound method is an object that lives as long as its event: these are shared by all of their kind.
        self._arrives, self._is_created, self._ends = self._arrive, self._created, self._end_trajectory
        self._runs_tool, self._ends_tool = self._run_tool, self._end_tool

    def _kind(self, number: int, streams: Streams, directory: Path) -> WorkloadState:
        workload = self._scenario.workloads[number]
        generator = streams.generator(f"arrivals {number}")
        plan = plan_arrivals(workload.arrivals, self._scenario.duration_s, generator, directory=directory)
        return WorkloadState(number, workload, streams, plan)

    def _events_per_s(self) -> float:
        """Guess the rate of events; buckets of the calendar are cut by it."""
        total = 0.0
        for kind in self._kinds:
            each = 5.0 + (3 * kind.workload.rounds.expected() if kind.has_rounds else 0)
            total += len(kind.times_s) * each
        return max(1.0, total / self._scenario.duration_s)

    # Running.

    def run(self, case: str = "", progress: Callable[[float], None] | None = None) -> Result:
        """Run to the end and sum up."""
        scenario, calendar = self._scenario, self.calendar
        self._schedulers.watch(0.0)
        for kind in self._kinds:
            self._begin_arrivals(kind)
        for failure in scenario.failures:
            calendar.at(failure.at_s, self._break, failure)
        calendar.at(0.0, self._sample)
        if scenario.warmup_s:
            calendar.at(scenario.warmup_s, lambda now_s, _: self.measures.restart(now_s))
        with without_garbage_collection():
            for step in range(1, _STEPS_OF_PROGRESS + 1):
                calendar.run(scenario.duration_s * step / _STEPS_OF_PROGRESS)
                if progress is not None:
                    progress(step / _STEPS_OF_PROGRESS)
        self.measures.takeovers = self._schedulers.takeovers
        return self.measures.result(
            scenario=scenario.title,
            case=case,
            seed=self._seed,
            now_s=calendar.now_s,
            events=calendar.events,
            extra={
                "origin_bytes": self._origin.moved_bytes,
                "peer_bytes": self._images.peer_bytes,
                "store_bytes": self._store.moved_bytes,
                "decisions": float(sum(one.engine.statistics().placed for one in self._schedulers.all)),
            },
        )

    def _begin_arrivals(self, kind: WorkloadState) -> None:
        if kind.closed:
            for group in range(len(kind.times_s)):
                self.calendar.at(0.0, self._arrive_closed, (kind, group))
        elif kind.times_s:
            self.calendar.at(kind.times_s[0], self._arrive, (kind, iter(range(len(kind.times_s)))))

    def _sample(self, now_s: float, _: None) -> None:
        every_s = self._scenario.sample_every_s
        self.measures.sample(now_s, every_s, self._origin.moved_bytes)
        self.calendar.at(now_s + every_s, self._sample)

    # Asking.

    def _arrive(self, now_s: float, what: tuple[WorkloadState, object]) -> None:
        kind, numbers = what
        number = next(numbers)  # type: ignore[call-overload]
        if number + 1 < len(kind.times_s):
            self.calendar.at(kind.times_s[number + 1], self._arrives, what)
        lifetime_s = None if kind.durations_s is None else kind.durations_s[number]
        self._ask(now_s, kind, kind.groups[number], lifetime_s)

    def _arrive_closed(self, now_s: float, what: tuple[WorkloadState, int]) -> None:
        self._ask(now_s, *what)

    def _ask(self, now_s: float, kind: WorkloadState, group: int, lifetime_s: float | None = None) -> None:
        number = next(self._ids)
        job, task = kind.names_of(group)
        if kind.images is None:
            image = None
        else:
            image, task_number = kind.images.next(group)
            task = f"t{kind.number}.{task_number}"
        sandbox = SimSandbox(f"s{number}", kind, group, job, task, image, now_s)
        sandbox.lifetime_s = lifetime_s
        self._request(now_s, sandbox)

    def _request(self, now_s: float, sandbox: SimSandbox) -> None:
        self.measures.asked += 1
        self.measures.waiting.add(now_s, 1)
        kind = sandbox.kind
        shape = kind.anywhere
        if self._gate is not None:
            to_cloud = self._gate.sends(now_s, sandbox)
            self.measures.sent_to_cloud += to_cloud
            shape = kind.cloud if to_cloud else kind.own
        self._schedulers.submit(now_s, sandbox, shape)

    # Creating.

    def _carry(self, now_s: float, sandbox: SimSandbox, step: Step) -> None:
        """Do what a creation says."""
        if type(step) is Send:
            if step.at_s > now_s:
                self.calendar.at(step.at_s, self._send, (sandbox, step))
            else:
                self._send(now_s, (sandbox, step))
        elif type(step) is Pause:
            self.measures.refused += 1
            self.calendar.at(step.until_s, self._resume, (sandbox, step))
        elif type(step) is GiveUp:
            self._give_up(now_s, sandbox)
        else:
            assert type(step) is Done

    def _send(self, now_s: float, what: tuple[SimSandbox, Send]) -> None:
        """Ask a node for a creation."""
        sandbox, step = what
        creation = sandbox.creation
        if creation is None or creation.step is not step or sandbox.ended:
            return
        node = self._by_name[step.node]
        work = self._offer(now_s, sandbox, step, node) if node.alive and now_s >= node.opens_s else None
        if work is not None and work.ends_s <= step.deadline_s:
            # It is in time, unless the node dies: three million deadlines that nothing happens at are not scheduled.
            work.unwatched = what
        elif creation.step is step:
            self.calendar.at(step.deadline_s, self._deadline, what)

    def _offer(self, now_s: float, sandbox: SimSandbox, step: Send, node: SimNode) -> Work | None:
        """Ask a node that answers; return the creation that it has begun for this, if it took one."""
        creation = sandbox.creation
        assert creation is not None
        known = node.works.get(sandbox.sandbox_id) if self._idempotent else None
        if known is not None:
            self._find_again(now_s, known, sandbox)
        elif node.admits():
            if not self._idempotent and sandbox.sandbox_id in node.works:
                self.measures.duplicates += 1
            work = node.take(sandbox, creation, now_s)
            self._schedulers.all[sandbox.scheduler].engine.admitted(sandbox.sandbox_id, node.name, work.ticket, now_s)
            self._start_next(now_s, node)
            return work
        else:
            self.measures.rejected += 1
            self._carry(now_s, sandbox, creation.rejected(node.name, now_s, view=node.view()))
        return None

    def _find_again(self, now_s: float, work: Work, sandbox: SimSandbox) -> None:
        """The node has a creation with this id already: it answers for that one."""
        assert sandbox.creation is not None
        work.creation = sandbox.creation
        if work.done:
            self._answer(now_s, work)

    def _start_next(self, now_s: float, node: SimNode) -> None:
        queue = node.queue
        while queue and node.creating < node.creations_at_once:
            work = queue.popleft()
            node.creating += 1
            work.begun_s = now_s
            if work.sandbox.image is None:
                self._have_image(now_s, work)
            else:
                self._images.fetch(now_s, work)

    def _have_image(self, now_s: float, work: Work) -> None:
        if work.sandbox.image is not None:
            self.measures.image_s.add(now_s - work.begun_s)
        work.ends_s = ends_s = now_s + self._create_s[work.node.group.name]()
        self.calendar.at(ends_s, self._is_created, work)

    def _created(self, now_s: float, work: Work) -> None:
        node = work.node
        if node.life != work.life:
            return
        node.creating -= 1
        work.done = True
        self.measures.queue_s.add(work.begun_s - work.asked_s)
        self._answer(now_s, work)
        self._start_next(now_s, node)

    def _answer(self, now_s: float, work: Work) -> None:
        """A node says that a sandbox stands; it is used, or nobody wants it any more."""
        sandbox, node = work.sandbox, work.node
        step, _ = work.creation.created(node.name, now_s, ticket=work.ticket)
        is_wanted = not sandbox.ended and sandbox.node is None and work.creation is sandbox.creation
        if is_wanted and type(step) is Done and step.node == node.name:
            if node.works.get(sandbox.sandbox_id) is work:
                del node.works[sandbox.sandbox_id]
            self._stand(now_s, sandbox, node)
        elif self._idempotent:
            self.measures.orphaned += 1
            self._forget_work(work)
            node.release(sandbox.memory_bytes)
        else:
            # Nobody knows of it, so that it stays until its own lifetime ends.
            self.measures.leaked += 1
            self._forget_work(work)
            self.calendar.at(now_s + sandbox.kind.lifetime_s(), self._end_leak, work)

    def _forget_work(self, work: Work) -> None:
        works = work.node.works
        if works.get(work.sandbox.sandbox_id) is work:
            del works[work.sandbox.sandbox_id]

    def _end_leak(self, now_s: float, work: Work) -> None:
        if work.node.life == work.life:
            work.node.release(work.sandbox.memory_bytes)

    def _deadline(self, now_s: float, what: tuple[SimSandbox, Send]) -> None:
        sandbox, step = what
        creation = sandbox.creation
        if creation is None or creation.step is not step or sandbox.ended:
            return
        self.measures.timed_out += 1
        if now_s - sandbox.asked_s > sandbox.kind.workload.patience_s:
            self._schedulers.engine_of(sandbox).withdraw(sandbox.sandbox_id, now_s)
            self._give_up(now_s, sandbox)
        else:
            self._carry(now_s, sandbox, creation.timed_out(step.node, now_s))

    def _resume(self, now_s: float, what: tuple[SimSandbox, Pause]) -> None:
        sandbox, step = what
        creation = sandbox.creation
        if creation is None or creation.step is not step or sandbox.ended:
            return
        if now_s - sandbox.asked_s > sandbox.kind.workload.patience_s:
            self._give_up(now_s, sandbox)
        else:
            self._carry(now_s, sandbox, creation.resume(now_s))

    def _give_up(self, now_s: float, sandbox: SimSandbox) -> None:
        """The creation failed for good; whoever wanted it asks again, while it has patience."""
        workload = sandbox.kind.workload
        if workload.ask_again_s and now_s + workload.ask_again_s - sandbox.asked_s <= workload.patience_s:
            self.measures.asked_again += 1
            self._schedulers.answered(sandbox)
            self.calendar.at(now_s + workload.ask_again_s, self._ask_again, sandbox)
            return
        sandbox.ended = True
        self.measures.given_up += 1
        self.measures.waiting.add(now_s, -1)
        self._schedulers.answered(sandbox)
        if sandbox.kind.closed:
            self._ask(now_s, sandbox.kind, sandbox.group)

    def _ask_again(self, now_s: float, sandbox: SimSandbox) -> None:
        assert sandbox.creation is not None
        self._schedulers.submit(now_s, sandbox, sandbox.creation.request.shape)

    # Living.

    def _stand(self, now_s: float, sandbox: SimSandbox, node: SimNode) -> None:
        measures, kind = self.measures, sandbox.kind
        sandbox.node = node
        sandbox.creation = None  # Nobody asks it any more, and those of all who stand are a fifth of a run's memory.
        node.residents[sandbox] = None
        if self._schedulers.may_die:
            self._schedulers.answered(sandbox)
        measures.created += 1
        if now_s >= measures.second_ends_s:
            measures.begin_second(now_s)
        measures.in_second += 1
        measures.create_s.add(now_s - sandbox.asked_s)
        measures.waiting.add(now_s, -1)
        measures.running.add(now_s, 1)
        if node.cloud:
            measures.cloud.add(now_s, 1)
        sandbox.trajectories_left = kind.trajectories_each or max(1, round(kind.trajectories()))
        if not kind.has_rounds:
            self._use_cores(node, kind, kind.cores)
        self._begin_trajectory(now_s, sandbox)

    def _use_cores(self, node: SimNode, kind: WorkloadState, cores: float) -> None:
        node.cores += cores
        if kind.best_effort:
            node.best_effort_cores += cores

    def _begin_trajectory(self, now_s: float, sandbox: SimSandbox) -> None:
        kind = sandbox.kind
        if sandbox.ended:
            return
        if kind.has_rounds:
            sandbox.rounds_left = max(1, round(kind.rounds()))
            self.calendar.at(now_s + kind.model_call_s(), self._runs_tool, sandbox)
        else:
            lifetime_s = kind.lifetime_s() if sandbox.lifetime_s is None else sandbox.lifetime_s
            self.calendar.at(now_s + lifetime_s, self._ends, sandbox)

    def _run_tool(self, now_s: float, sandbox: SimSandbox) -> None:
        """The model has decided. The tool runs at the speed that the node has for it now."""
        if sandbox.ended or sandbox.node is None:
            return
        kind, node = sandbox.kind, sandbox.node
        wanted = kind.workload.tool_cores
        self._use_cores(node, kind, wanted)
        factor = self._slowdown(node, kind)
        took_s = kind.tool_s() * factor
        if kind.workload.best_effort:
            self.measures.best_effort_s.add(took_s)
        else:
            self.measures.step_s.add(took_s)
            self.measures.slowdown.add(factor)
        self.calendar.at(now_s + took_s, self._ends_tool, sandbox)

    def _slowdown(self, node: SimNode, kind: WorkloadState) -> float:
        """Return by how much a tool is slower than alone: by waiting for cores, and by neighbours.

        Under `SCHED_IDLE` latency-sensitive work waits for its own kind only, and best-effort work gets what is left.
        """
        cores, protection = node.group.cores, self._scenario.protection
        sensitive = node.cores - node.best_effort_cores
        if protection == "none":
            crowd = max(1.0, node.cores / cores)
        elif kind.workload.best_effort:
            crowd = max(1.0, node.best_effort_cores / max(1.0, cores - sensitive))
        else:
            crowd = max(1.0, sensitive / cores)
        if kind.workload.best_effort:
            return crowd
        return crowd * slowdown(protection, min(node.best_effort_cores, cores) / cores)

    def _end_tool(self, now_s: float, sandbox: SimSandbox) -> None:
        if sandbox.ended or sandbox.node is None:
            return
        kind = sandbox.kind
        self._use_cores(sandbox.node, kind, -kind.workload.tool_cores)
        sandbox.rounds_left -= 1
        if sandbox.rounds_left:
            self.calendar.at(now_s + kind.model_call_s(), self._runs_tool, sandbox)
        else:
            self._end_trajectory(now_s, sandbox)

    def _end_trajectory(self, now_s: float, sandbox: SimSandbox) -> None:
        if sandbox.ended:
            return
        snapshot_bytes = sandbox.kind.snapshot_bytes
        if snapshot_bytes:
            self.calendar.at(self._store.reserve(now_s, snapshot_bytes), self._complete, sandbox)
        else:
            self._complete(now_s, sandbox)

    def _complete(self, now_s: float, sandbox: SimSandbox) -> None:
        if sandbox.ended:
            return
        self.measures.completed += 1
        self.measures.trajectory_s.add(now_s - sandbox.asked_s)
        sandbox.trajectories_left -= 1
        if sandbox.trajectories_left:
            sandbox.asked_s = now_s
            self.calendar.at(now_s + sandbox.kind.workload.recycle_s, self._begin_trajectory, sandbox)
            return
        self._end(now_s, sandbox)
        self.measures.ended += 1
        if sandbox.kind.closed:
            self._ask(now_s, sandbox.kind, sandbox.group)

    def _end(self, now_s: float, sandbox: SimSandbox) -> None:
        node, kind = sandbox.node, sandbox.kind
        assert node is not None
        sandbox.ended = True
        if not kind.has_rounds:
            self._use_cores(node, kind, -kind.cores)
        node.release(sandbox.memory_bytes)
        node.residents.pop(sandbox, None)
        self._leave(now_s, sandbox, node)

    def _leave(self, now_s: float, sandbox: SimSandbox, node: SimNode) -> None:
        self.measures.running.add(now_s, -1)
        if node.cloud:
            self.measures.cloud.add(now_s, -1)
        self._schedulers.all[sandbox.scheduler].engine.ended(sandbox.sandbox_id)

    # Breaking.

    def _break(self, now_s: float, failure: Failure) -> None:
        if failure.kind == "watcher":
            self._schedulers.watching = False
        elif failure.kind == "scheduler":
            self._schedulers.lose(now_s, failure.which)
        else:
            for node in self._hit(failure):
                self._kill(now_s, node)
        if failure.for_s:
            self.calendar.at(now_s + failure.for_s, self._mend, failure)

    def _hit(self, failure: Failure) -> list[SimNode]:
        if failure.kind == "node":
            return [self.nodes[failure.which]]
        return [node for node in self.nodes if node.rack == failure.which]

    def _kill(self, now_s: float, node: SimNode) -> None:
        lost = list(node.residents)
        for work in node.works.values():
            if work.unwatched is not None:
                self.calendar.at(work.unwatched[1].deadline_s, self._deadline, work.unwatched)
        node.die()
        self._images.forget(node)
        for sandbox in lost:
            sandbox.ended = True
            self.measures.lost += 1
            self._leave(now_s, sandbox, node)
            if sandbox.kind.workload.restart_lost:
                self.calendar.at(now_s + self._scenario.scheduling.view_every_s, self._restart, sandbox)

    def _restart(self, now_s: float, lost: SimSandbox) -> None:
        """Whoever used a lost sandbox asks for another of the same task."""
        self.measures.restarted += 1
        new = SimSandbox(f"s{next(self._ids)}", lost.kind, lost.group, lost.job, lost.task, lost.image, now_s)
        self._request(now_s, new)

    def _mend(self, now_s: float, failure: Failure) -> None:
        if failure.kind == "watcher":
            self._schedulers.watching = True
        elif failure.kind == "scheduler":
            self._schedulers.restore(now_s, failure.which)
        else:
            for node in self._hit(failure):
                node.alive = True
