"""Fingerprints: whether a sandbox is what a fresh one is, told cheaply, from outside, and in words.

A rollback makes a new generation: new processes, namespaces and control group on an empty writable layer. The check
does not trust that. It looks at what a predecessor could have left and compares it with what was seen of a sandbox of
the same *shape* (layers, rules, limits that show) that was created and never used.

**Recorded** once for each shape, by the first sandbox of it that is created, before anybody is given it; kept in a
file (docs/formats/fingerprints.md), so that a restart of the node forgets nothing. A boot of the kernel begins anew,
since no instance outlives one. **Compared** after each rollback and each recycle, and when somebody asks. A rollback
whose result is not clean fails the sandbox: it is taken apart, and nobody is given it.

**Cheap by construction**: metadata of what changed (a clean writable layer is next to empty, however many files the
image has) and some twenty reads of /proc. Content is read only of paths that the image's rules name. A command of the
image's own costs what it costs, and its generation is the only one in which something ran before it was handed out.

A state that began from a checkpoint has the files of the checkpoint by construction; there only what is no file is
compared. docs/formats/fingerprints.md lists what is seen and what is not.
"""

from __future__ import annotations

import os

import anyio
import anyio.to_thread
import blake3
import structlog

from dsec.base.errors import DsecError, LimitExceededError, NotFoundError, RuntimeFailedError, StateMismatchError
from dsec.linux.inodes import attribute_names, flags
from dsec.linux.walk import walk
from dsec.model.state import FingerprintReport
from dsec.node.core import SEED_FILE, Core
from dsec.node.sandbox import Generation, Sandbox, command_environment
from dsec.node.state import clean
from dsec.node.state.clean import CleanState, differences
from dsec.node.state.declared import declared_facts
from dsec.node.state.image_check import ask, require_good
from dsec.stores.port import SandboxRecord

_log = structlog.get_logger(__name__)
_MOST_WRITTEN = 1000
"""Entries of a writable layer that are looked at: no clean one has as many."""
_MOST_SEED_BYTES = 64
_SEED_MODE = 0o100444
"""A file that nobody may write to."""


async def learn(core: Core, record: SandboxRecord, generation: Generation) -> None:
    """Record what a clean sandbox of this shape looks like, unless that is known. Nothing may have run in it.

    Raises:
        HookFailedError: by the image's own check no sandbox would be clean.
    """
    if record.origin or core.clean_states.find(record) is not None:
        return
    seen = await _asked(core, record, generation, await _observe(core, record, generation))
    if clean.COMMAND in seen.facts:
        require_good(seen.facts[clean.COMMAND])
    # A small file, once for each shape and boot: no reason for a thread.
    core.clean_states.keep(record, seen.without(frozenset({clean.ENVIRONMENT})))


async def check(core: Core, record: SandboxRecord, generation: Generation, *, from_checkpoint: bool = False) -> None:
    """Compare a new generation with the clean state.

    Args:
        core: the node.
        record: what it was launched as.
        generation: what is looked at; nothing may have run in it.
        from_checkpoint: its writable layer began from a checkpoint.

    Raises:
        StateMismatchError: it is not clean; the detail says in what. The caller ends it.
    """
    expected = _expected(core, record)
    if expected is None:
        # Created by a node that kept no records: there is nothing to compare with.
        _log.warning("no_clean_state_recorded", sandbox_id=record.sandbox_id)
        return
    left_out = clean.OF_FILES if from_checkpoint or record.origin else frozenset()
    seen = await _observe(core, record, generation, left_out=left_out)
    if clean.COMMAND not in left_out:
        seen = await _asked(core, record, generation, seen)
    found = differences(expected.without(left_out), seen)
    if found:
        raise StateMismatchError(
            f"{record.sandbox_id} is not clean: {found[0]}",
            detail="; ".join(found),
            resolution="create another sandbox; this one was destroyed",
        )


async def describe(core: Core, record: SandboxRecord, generation: Generation) -> str:
    """Say in which way a generation that nobody has is not clean; empty when it is clean.

    Raises:
        DsecError: it cannot be looked at, or nobody recorded what a clean one looks like.
    """
    if core.clean_states.find(record) is None:
        raise RuntimeFailedError("it is not known what a clean one looks like")
    try:
        await check(core, record, generation)
    except StateMismatchError as error:
        return error.detail
    return ""


async def report(core: Core, sandbox: Sandbox) -> FingerprintReport:
    """Compare a sandbox as it is now with its clean state, and leave it as it is.

    Raises:
        NotFoundError: no clean state of its shape is recorded.
    """
    began_s = anyio.current_time()
    record, generation = sandbox.record, sandbox.running()
    expected = _expected(core, record)
    if expected is None:
        raise NotFoundError(
            f"no clean state is recorded for {sandbox.sandbox_id}",
            detail="it was created by an earlier version, or its record is lost",
            resolution="create another sandbox of this image",
        )
    # A check of the image's own means something before anybody used a sandbox; and to run it would disturb this one.
    left_out = clean.OF_FILES if record.origin else frozenset({clean.COMMAND})
    ignored = record.image_config.fingerprint.ignored
    expected = expected.without(left_out).ignoring(ignored)
    seen = (await _observe(core, record, generation, left_out=left_out)).ignoring(ignored)
    return FingerprintReport(
        sandbox_id=sandbox.sandbox_id,
        fingerprint=seen.fingerprint(),
        expected=expected.fingerprint(),
        differences=differences(expected, seen),
        duration_s=anyio.current_time() - began_s,
    )


async def _observe(
    core: Core, record: SandboxRecord, generation: Generation, *, left_out: frozenset[str] = frozenset()
) -> CleanState:
    seed = await _seed_fact(record, generation)
    facts: dict[str, tuple[str, ...]] = {clean.ENVIRONMENT: _environment_facts(generation.env, seed)}
    rules = record.image_config.fingerprint
    if (rules.files or rules.contents) and clean.DECLARED not in left_out:
        facts[clean.DECLARED] = clean.lines(await declared_facts(generation.instance.files, rules))
    seen = await generation.instance.fingerprint()
    if seen.processes is not None:
        facts[clean.PROCESSES] = (str(seen.processes),)
    for group, found in (
        (clean.COMMANDS, seen.command_groups),
        (clean.MOUNTS, seen.mounts),
        (clean.INIT, seen.init),
        (clean.IPC, seen.ipc),
        (clean.SOCKETS, seen.sockets),
        (clean.VOLATILE, _without_seed(record, seen.volatile)),
    ):
        facts[group] = clean.lines(found)
    if clean.WRITTEN not in left_out:
        facts[clean.WRITTEN] = await _written(core, record)
    return CleanState(facts=facts)


async def _asked(core: Core, record: SandboxRecord, generation: Generation, seen: CleanState) -> CleanState:
    """Add what the image's own check says, and what it leaves behind where it may not.

    All else was looked at before it runs, so that nothing of an earlier generation hides behind what it may leave.
    """
    rules = record.image_config.fingerprint
    if not rules.command:
        return seen
    said = await ask(core, generation, rules)
    after = await _observe(core, record, generation)
    left = differences(seen.ignoring(rules.ignored), after.ignoring(rules.ignored))
    return seen.having(clean.COMMAND, (clean.printable(said), *left))


def _without_seed(record: SandboxRecord, entries: tuple[str, ...]) -> tuple[str, ...]:
    """Leave the seed's file out where there is to be one and it is as we make it: sandboxes with and without a seed are
    of one shape."""
    if record.spec.seed is None:
        return entries
    return tuple(entry for entry in entries if not entry.startswith(f"{SEED_FILE} mode {_SEED_MODE:o} "))


async def _seed_fact(record: SandboxRecord, generation: Generation) -> tuple[str, ...]:
    """Say what the file of the seed holds, of a sandbox that has one."""
    if record.spec.seed is None:
        return ()
    try:
        reader = await generation.instance.files.open_read(SEED_FILE)
    except DsecError as error:
        return (f"{SEED_FILE} {error.code}",)
    try:
        return (f"{SEED_FILE} {(await reader.read(_MOST_SEED_BYTES)).decode(errors='backslashreplace').rstrip()}",)
    finally:
        await reader.close()


async def _written(core: Core, record: SandboxRecord) -> tuple[str, ...]:
    layer = core.parts.layers.get(record.layer)
    if layer is None:
        raise RuntimeFailedError(f"the writable layer {record.layer} is gone")
    first = core.slots.first_host_id(record.slot)
    try:
        top = os.open(layer.upper, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # Layers in memory have no directories.
        return ()
    try:
        # In a thread: the tree is the guest's, which can hold a directory's lock.
        return clean.lines(await anyio.to_thread.run_sync(_entries, top, first))
    finally:
        os.close(top)


def _entries(top: int, first_host_id: int) -> list[str]:
    found = [_entry_fact("/", os.fstat(top), first_host_id)]
    try:
        found += [f"/ has {name}" for name in attribute_names(top)]
    except LimitExceededError:
        found.append("/ has more attributes than can be listed")  # No clean one has.
    found.append(f"/ has flags {flags(top):x}")
    for path, status in walk(top, limit=_MOST_WRITTEN):
        found.append(_entry_fact(f"/{os.fsdecode(path)}", status, first_host_id))
    return found


def _expected(core: Core, record: SandboxRecord) -> CleanState | None:
    """Return the recorded state, with what each sandbox has of its own."""
    known = core.clean_states.find(record)
    if known is None:
        return None
    seed = () if record.spec.seed is None else (f"{SEED_FILE} {record.spec.seed}",)
    return known.having(clean.ENVIRONMENT, _environment_facts(command_environment(record), seed))


def _environment_facts(env: dict[str, str], seed: tuple[str, ...]) -> tuple[str, ...]:
    """Name variables with a hash of each value, since values may be credentials."""
    return clean.lines(
        [*seed, *(f"{name} blake3:{blake3.blake3(os.fsencode(value)).hexdigest()[:16]}" for name, value in env.items())]
    )


def _entry_fact(path: str, status: os.stat_result, first_host_id: int) -> str:
    uid, gid = (each - first_host_id if each >= first_host_id else each for each in (status.st_uid, status.st_gid))
    size = "" if (status.st_mode & 0o170000) == 0o040000 else f" size {status.st_size}"
    return f"{path} mode {status.st_mode:o} owner {uid}:{gid}{size}"
