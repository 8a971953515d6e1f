"""Random edits, checkpoints, rollbacks, forks, pauses, ends and restarts of a node, against plain dictionaries.

The machine is a Hypothesis state machine (`dsec.testing.forest_model` is the model) over any node: a test module
inherits from it and says on what *ground* the node stands. Where the ground can let a node die in the middle of an
operation, it does; what the next node shows must be the forest before the operation, the one after it, or one of those
that an interruption may leave. An operation that was answered has happened, whatever dies then.

At the end of every example each checkpoint is rolled back to and read, in the order in which they were made and after
everything that was done since; then all is removed, and nothing may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, ClassVar, Protocol, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsec.base.errors import AlreadyExistsError, CallerError, DsecError, InvalidStateError, SnapshotNotFoundError
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, PackRequest, RestoreRequest, SnapshotRequest
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService
from dsec.testing.faults import Killed
from dsec.testing.forest_model import (
    Box,
    Files,
    Forest,
    RefusedError,
    differing,
    look,
    moved,
    removed,
    with_directory,
    written,
)

T = TypeVar("T")
Call = Callable[[SandboxService], Awaitable[T]]
HOME = "/home/user"
MOST_BOXES = 5
MOST_PACKED = 2
PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/a", "image", "image/one", "image/sub", "image/sub/two"])
CONTENTS = st.sampled_from([b"", b"x", b"yy", b"z" * 5000])
NAMES = st.sampled_from(["", "", "p", "q", "r"])
NUMBER = st.integers(0, 11)
"""Chooses one of what there is."""


class Ground(Protocol):
    """What a node stands on; it outlives every node.

    Attributes:
        images: by name, what each holds below `HOME`.
        is_dead: the node was killed.
    """

    images: Mapping[str, Files]
    is_dead: bool

    def node(self) -> AbstractAsyncContextManager[SandboxService]:
        """Run the next node. One that is killed leaves by `Killed`."""

    def arm(self, step: int) -> None:
        """Kill the node at this step from now on; 0: no more."""

    async def settle(self, service: SandboxService) -> None:
        """Wait for what goes in the background."""

    async def check(self, service: SandboxService) -> None:
        """Raise `AssertionError` when the host holds what no sandbox needs."""

    async def check_empty(self, service: SandboxService) -> None:
        """The same when there is no sandbox any more."""

    def close(self) -> None:
        """Let go of everything."""


class ForestMachine(RuleBasedStateMachine):
    """One ground, one node after another."""

    make_ground: ClassVar[Callable[[], Ground]]
    can_die: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.ground = type(self).make_ground()
        self.forest = Forest(images=self.ground.images)
        self.made = 0
        self._is_broken = True
        self._armed = 0
        self._runner = asyncio.Runner()
        self._stop: asyncio.Event
        self._life: asyncio.Task[None]
        self.service: SandboxService

    # -- one node after another ---------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        with self._checking():
            self._start()

    def _start(self) -> None:
        async def live(ready: asyncio.Event, stop: asyncio.Event) -> None:
            try:
                async with self.ground.node() as self.service:
                    ready.set()
                    await stop.wait()
            finally:
                ready.set()

        async def start() -> None:
            ready, self._stop = asyncio.Event(), asyncio.Event()
            self._life = asyncio.create_task(live(ready, self._stop))
            await ready.wait()
            if self._life.done():
                await self._life

        self._runner.run(start())

    def _end(self) -> None:
        async def end() -> None:
            self._stop.set()
            try:
                await self._life
            except* Killed:
                assert self.ground.is_dead

        self._runner.run(end())

    def _restart(self) -> None:
        self._end()
        self._start()

    def teardown(self) -> None:
        """See every checkpoint's content; then see that everything can go and nothing stays."""
        try:
            if not self._is_broken:
                self._armed = 0
                self._read_checkpoints()
                self._remove_all()
                self._end()
        finally:
            self._runner.close()
            self.ground.close()

    def _read_checkpoints(self) -> None:
        for name, box in self.forest.boxes.items():
            for key in box.points:
                self._rollback(name, key)
        self.what_is_shown_is_what_must_be()

    def _remove_all(self) -> None:
        async def empty() -> None:
            await self.ground.settle(self.service)
            await self.ground.check_empty(self.service)

        for name in list(self.forest.boxes):
            self._remove(name)
        with self._checking():
            self._runner.run(empty())

    # -- an operation and what it leads to ----------------------------------------------------------------------------

    @contextmanager
    def _checking(self) -> Iterator[None]:
        """A machine that found something is not to be torn down in good order."""
        self._is_broken = True
        yield
        self._is_broken = False

    def do(self, what: str, call: Call[T], *after: Forest, error: type[DsecError] | None = None) -> T | None:
        """Make a call that leads to the last of `after`, cut off to any of them or nowhere; None when it was cut off.

        Args:
            what: for the report.
            call: the call.
            after: what may be there then; nothing given: nothing changes.
            error: the call has to raise this.
        """
        note(what)
        with self._checking():
            outcomes = after or (self.forest,)
            result: T | None = None
            answered = False
            self.ground.arm(self._armed)
            try:
                result = self._runner.run(self._made(call, error))
                answered = True
            except* Killed:
                pass
            self.ground.arm(0)
            self._armed = 0
            if self.ground.is_dead:
                self._recognise(outcomes[-1:] if answered else (*self._untouched(), *outcomes))
                return None
            self.forest = outcomes[-1]
            return result

    async def _made(self, call: Call[T], error: type[DsecError] | None) -> T | None:
        try:
            result = await call(self.service)
        except DsecError as raised:
            if error is None or not isinstance(raised, error):
                raise AssertionError(f"refused: {raised!r}") from raised
            result = None
        else:
            assert error is None, f"it had to raise {error}, and gave {result}"
        try:
            await self.ground.settle(self.service)
        except* Killed:
            pass  # It was answered before.
        return result

    def _untouched(self) -> list[Forest]:
        """The forest as it is, and with one paused sandbox woken, which is what many operations begin with."""
        paused = [name for name, box in self.forest.boxes.items() if box.state is SandboxState.PAUSED]
        woken = [self.forest.having({name: self.forest.boxes[name].in_state(SandboxState.READY)}) for name in paused]
        return [self.forest, *woken]

    def _recognise(self, possible: tuple[Forest, ...]) -> None:
        """After a kill: let the next node start, and see which of the possible forests is the true one."""
        self._restart()
        shown = self._runner.run(look(self.service, HOME))
        true = [forest for forest in possible if forest.shown() == shown]
        assert true, "\n".join(["none of what may be:", *(differing(shown, forest.shown()) for forest in possible)])
        note(f"-- killed; the next node shows outcome {possible.index(true[-1])}")
        self.forest = true[-1]

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _live(self, who: int) -> tuple[str, Box] | None:
        live = sorted(name for name, box in self.forest.boxes.items() if box.is_live)
        if not live:
            return None
        name = live[who % len(live)]
        return name, self.forest.boxes[name]

    def _new_names(self, count: int) -> list[str]:
        self.made += count
        return [f"sbx-f{number}" for number in range(self.made - count + 1, self.made + 1)]

    # -- rules --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.forest.boxes) < MOST_BOXES)
    @rule(which=NUMBER)
    def create(self, which: int) -> None:
        (name,) = self._new_names(1)
        image, files = list(self.forest.images.items())[which % len(self.forest.images)]
        spec = SandboxSpec(image=image, workdir=HOME)
        after = self.forest.having({name: Box(files=files, clean=files)})
        self.do(f"create {name} from {image}", lambda s: s.create(spec, sandbox_id=name), after)

    def _edit(self, who: int, what: str, change: Callable[[Files], Files], call: Callable[[str], Call[Any]]) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        error: type[DsecError] | None = None
        files = box.files
        try:
            files = change(files)
        except RefusedError:
            error = CallerError
        self.do(f"{name}: {what}", call(name), self.forest.having({name: box.with_files(files)}), error=error)

    @rule(who=NUMBER, path=PATHS, content=CONTENTS, mode=st.sampled_from([0o644, 0o600, 0o755]), append=st.booleans())
    def write(self, who: int, path: str, content: bytes, mode: int, append: bool) -> None:
        self._edit(
            who,
            f"write {path} ({len(content)} bytes, {mode:o}, append: {append})",
            lambda files: written(files, path, content, mode=mode, append=append),
            lambda name: lambda s: s.write_file(name, path, content, permissions=mode, append=append),
        )

    @rule(who=NUMBER, path=PATHS)
    def remove_file(self, who: int, path: str) -> None:
        self._edit(
            who,
            f"remove {path}",
            lambda files: removed(files, path),
            lambda name: lambda s: s.remove_file(name, path, recursive=True),
        )

    @rule(who=NUMBER, path=PATHS)
    def make_directory(self, who: int, path: str) -> None:
        self._edit(
            who,
            f"make directory {path}",
            lambda files: with_directory(files, path),
            lambda name: lambda s: s.make_directory(name, path),
        )

    @rule(who=NUMBER, old=PATHS, new=PATHS)
    def move_file(self, who: int, old: str, new: str) -> None:
        if not self.may_move(old):
            return
        self._edit(
            who,
            f"move {old} to {new}",
            lambda files: moved(files, old, new),
            lambda name: lambda s: s.move_file(name, old, new),
        )

    def may_move(self, source: str) -> bool:
        """A directory of the image cannot be renamed: the kernel says EXDEV, as for any program inside."""
        return not any(files.get(source, ("",))[0] == "directory" for files in self.forest.images.values())

    @rule(who=NUMBER, label=NAMES)
    def checkpoint(self, who: int, label: str) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        if self._armed and not label:
            label = "s"  # Its id would be known to nobody.
        request = CheckpointRequest(name=label)
        if label in box.points:
            self.do(f"{name}: checkpoint {label} again", lambda s: state_of(s).checkpoint(name, request),
                    error=AlreadyExistsError)  # fmt: skip
            return
        after = self.forest.having({name: box.saved(label or "?")})
        info = self.do(f"{name}: checkpoint {label!r}", lambda s: state_of(s).checkpoint(name, request), after)
        if info is not None and not label:
            self.forest = self.forest.having({name: box.saved(info.checkpoint_id)})

    @rule(who=NUMBER, which=NUMBER)
    def remove_checkpoint(self, who: int, which: int) -> None:
        if (chosen := self._live(who)) is None or not chosen[1].points:
            return
        name, box = chosen
        key = list(box.points)[which % len(box.points)]
        after = self.forest.having({name: box.without(key)})
        self.do(f"{name}: remove checkpoint {key}", lambda s: state_of(s).remove_checkpoint(name, key), after)

    @rule(who=NUMBER, which=NUMBER)
    def roll_back(self, who: int, which: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        choices = [None, *box.points]
        self._rollback(name, choices[which % len(choices)])

    def _rollback(self, name: str, key: str | None) -> None:
        box = self.forest.boxes[name]
        after = self.forest.having({name: box.rolled_back(key)})
        self.do(f"{name}: roll back to {key}", lambda s: s.rollback(name, snapshot=key), after)

    @rule(who=NUMBER, whose=NUMBER, which=NUMBER, forks=st.booleans())
    def go_where_nothing_is(self, who: int, whose: int, which: int, forks: bool) -> None:
        """A checkpoint of another sandbox, or one that was never there, is refused and changes nothing."""
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        foreign = sorted({key for other in self.forest.boxes.values() for key in other.points} - set(box.points))
        key = [*foreign, "nowhere"][which % (len(foreign) + 1)]
        after = self.forest
        if forks:
            request = ForkRequest(checkpoint=key)
            self.do(f"{name}: fork from {key}", lambda s: state_of(s).fork(name, request), after,
                    error=SnapshotNotFoundError)  # fmt: skip
        else:
            self.do(f"{name}: roll back to {key}", lambda s: s.rollback(name, snapshot=key), after,
                    error=SnapshotNotFoundError)  # fmt: skip

    @precondition(lambda self: len(self.forest.boxes) < MOST_BOXES)
    @rule(who=NUMBER, which=NUMBER, count=st.integers(1, 2))
    def fork(self, who: int, which: int, count: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        choices = [None, *box.points]
        key = choices[which % len(choices)]
        names = self._new_names(count)
        after = self.forest.having(dict.fromkeys(names, box.child(key)))
        request = ForkRequest(count=count, sandbox_ids=tuple(names), checkpoint=key)
        self.do(f"{name}: fork {names} from {key}", lambda s: state_of(s).fork(name, request), after)

    @rule(who=NUMBER, which=NUMBER)
    def snapshot(self, who: int, which: int) -> None:
        """Make a checkpoint durable, or the present state: that one's checkpoint nobody can name beforehand."""
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        choices = [*([] if self._armed else [None]), *box.points]
        if not choices:
            return
        key = choices[which % len(choices)]
        self.made += 1
        label = f"s{self.made}"
        request = SnapshotRequest(checkpoint=key, name=label)
        files = box.files if key is None else box.points[key].files
        after = self.forest.with_snapshot(label, files)
        self.do(f"{name}: snapshot {label} of {key}", lambda s: state_of(s).snapshot(name, request), after)
        if key is None:
            self.forest = after.having({name: box.saved_for_snapshot(self._newest_checkpoint(name))})

    def _newest_checkpoint(self, name: str) -> str:
        listed = self._runner.run(_await(state_of(self.service).list_checkpoints(name)))
        return next(info.checkpoint_id for info in listed if info.is_current)

    @precondition(lambda self: self.forest.snapshots and len(self.forest.boxes) < MOST_BOXES)
    @rule(which=NUMBER)
    def restore(self, which: int) -> None:
        label, files = list(self.forest.snapshots.items())[which % len(self.forest.snapshots)]
        (name,) = self._new_names(1)
        request = RestoreRequest(sandbox_id=name)
        after = self.forest.having({name: Box(files=files, clean=files)})
        self.do(f"{name}: restore {label}", lambda s: state_of(s).restore(label, request), after)

    @precondition(lambda self: self.forest.snapshots)
    @rule(which=NUMBER)
    def remove_snapshot(self, which: int) -> None:
        label = list(self.forest.snapshots)[which % len(self.forest.snapshots)]
        after = self.forest.without_snapshot(label)
        self.do(f"remove snapshot {label}", lambda s: state_of(s).remove_snapshot(label), after)

    @precondition(lambda self: len(self.forest.images) < len(self.ground.images) + MOST_PACKED)
    @rule(who=NUMBER, which=NUMBER)
    def pack(self, who: int, which: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        choices = [None, *box.points]
        key = choices[which % len(choices)]
        self.made += 1
        image = f"packed{self.made}"
        request = PackRequest(name=image, checkpoint=key)
        after = self.forest.with_image(image, box.files if key is None else box.points[key].files)
        self.do(f"{name}: pack {image} of {key}", lambda s: state_of(s).pack(name, request), after)

    @rule(who=NUMBER)
    def pause(self, who: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        after = self.forest.having({name: box.in_state(SandboxState.PAUSED)})
        self.do(f"{name}: pause", lambda s: s.pause(name), after)

    @rule(who=NUMBER)
    def resume(self, who: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        self.do(
            f"{name}: resume", lambda s: s.resume(name), self.forest.having({name: box.in_state(SandboxState.READY)})
        )

    @rule(who=NUMBER)
    def stop(self, who: int) -> None:
        if (chosen := self._live(who)) is None:
            return
        name, box = chosen
        self.do(f"{name}: stop", lambda s: s.stop(name), self.forest.having({name: box.stopped()}))

    @precondition(lambda self: any(not box.is_live for box in self.forest.boxes.values()))
    @rule(who=NUMBER)
    def use_what_is_over(self, who: int) -> None:
        over = sorted(name for name, box in self.forest.boxes.items() if not box.is_live)
        name = over[who % len(over)]
        self.do(f"{name}: roll back", lambda s: s.rollback(name), error=InvalidStateError)

    @precondition(lambda self: self.forest.boxes)
    @rule(who=NUMBER)
    def remove(self, who: int) -> None:
        names = sorted(self.forest.boxes)
        self._remove(names[who % len(names)])

    def _remove(self, name: str) -> None:
        stopped = self.forest.having({name: self.forest.boxes[name].stopped()})
        self.do(f"{name}: remove", lambda s: s.remove(name), stopped, self.forest.without(name))

    @rule()
    def restart(self) -> None:
        note("restart")
        with self._checking():
            self._restart()

    @precondition(lambda self: self.can_die and not self._armed)
    @rule(step=st.integers(1, 24))
    def die_in_the_next_operation(self, step: int) -> None:
        note(f"the next operation dies at step {step}")
        self._armed = step

    # -- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def what_is_shown_is_what_must_be(self) -> None:
        if self._is_broken:
            return

        async def check() -> None:
            differences = differing(await look(self.service, HOME), self.forest.shown())
            assert not differences, differences
            await self.ground.check(self.service)

        with self._checking():
            self._runner.run(check())


async def _await(result: Awaitable[T]) -> T:
    return await result
