"""Verification that the guest cannot have prepared.

In the sandbox of the attempt, in this order and with nothing of the guest's running:

1. every process of the guest is killed (`end_processes` returns when all are seen to be gone);
2. whatever stands at ``/tests`` and ``/logs/verifier`` is removed from outside, without following links; ``/logs`` too,
   unless it is a plain directory that only root may write;
3. only now the tests are uploaded, in one archive that also makes a fresh ``/logs/verifier``;
4. ``tests/test.sh`` runs as root (or the task's ``[verifier] user``), with a PATH that the guest did not choose and
   without start-up files;
5. every process is killed again, so that nothing the tests started can rewrite the reward while it is read;
6. the reward is read from outside, bounded in size, and only if it is a regular file.

What remains of the guest is its files: a guest that was root may have replaced the interpreter that the tests use.
Against that stands verification in a clean sandbox (`transplant`): a second sandbox of the same image gets the content
of the declared paths and nothing else, and the same six steps happen there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import PathNotFoundError, TaskFormatError, UnsupportedFileError
from dsec.base.units import GIB, KIB
from dsec.episode.tools import CommandOutput
from dsec.model.files import FileInfo, FileKind
from dsec.model.process import CommandRequest
from dsec.service.port import SandboxService
from dsec.verification.faults import Phase
from dsec.verification.judge import Evidence, judge
from dsec.verification.outcome import Verdict
from dsec.verification.reward import MAXIMUM_REWARD_BYTES
from dsec.worker.tasks.archive import pack_folder
from dsec.worker.tasks.script import script_argv
from dsec.worker.tasks.task import Task
from dsec.worker.transfer import bounded, read_bounded, single_chunk

ROOT = "0"
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TESTS_OUTPUT_BYTES = 256 * KIB
MAXIMUM_TRANSPLANT_BYTES = 8 * GIB
_VERIFIER_LOGS = "/logs/verifier"

EnterPhase = Callable[[Phase], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The verdict and how the tests ended."""

    verdict: Verdict
    tests: CommandOutput


def tests_environment(image_env: Mapping[str, str], task_env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the tests: the image's PATH or the standard one, no start-up files, the task's own."""
    return {
        "PATH": image_env.get("PATH", STANDARD_PATH),
        "HOME": "/root",
        "BASH_ENV": "",
        "ENV": "",
        **task_env,
    }


async def _stat(service: SandboxService, sandbox_id: str, path: str) -> FileInfo | None:
    try:
        return await service.stat_file(sandbox_id, path, user=ROOT)
    except PathNotFoundError:
        return None


async def _remove(service: SandboxService, sandbox_id: str, path: str) -> None:
    try:
        await service.remove_file(sandbox_id, path, recursive=True, user=ROOT)
    except PathNotFoundError:
        return


def _is_safe_directory(info: FileInfo) -> bool:
    return info.kind is FileKind.DIRECTORY and info.uid == 0 and not info.mode & 0o022


async def clear(service: SandboxService, sandbox_id: str) -> None:
    """Remove what stands where the tests and their reward will be."""
    top = {entry.name: entry for entry in await service.list_files(sandbox_id, "/", user=ROOT)}
    if "tests" in top:
        await _remove(service, sandbox_id, "/tests")
    if logs := top.get("logs"):
        await _remove(service, sandbox_id, "/logs/verifier" if _is_safe_directory(logs) else "/logs")


async def _reward_file(service: SandboxService, sandbox_id: str, info: FileInfo | None) -> bytes | None:
    """Return the file's bytes (one more than allowed when it is too long), None when it is missing.

    Raises:
        UnsupportedFileError: it is not a regular file.
    """
    if info is None:
        return None
    if info.kind is not FileKind.FILE:
        raise UnsupportedFileError(f"{info.name} is no regular file ({info.kind.value})")
    path = f"{_VERIFIER_LOGS}/{info.name}"
    return await read_bounded(service.read_file(sandbox_id, path, user=ROOT), MAXIMUM_REWARD_BYTES)


async def _reward_entries(service: SandboxService, sandbox_id: str) -> dict[str, FileInfo]:
    try:
        entries = await service.list_files(sandbox_id, _VERIFIER_LOGS, user=ROOT)
    except PathNotFoundError:
        return {}
    return {entry.name: entry for entry in entries}


async def _evidence(
    service: SandboxService, sandbox_id: str, output: CommandOutput, policy_timed_out: bool
) -> Evidence:
    status = output.status()
    try:
        entries = await _reward_entries(service, sandbox_id)
        json = await _reward_file(service, sandbox_id, entries.get("reward.json"))
        text = await _reward_file(service, sandbox_id, entries.get("reward.txt")) if json is None else None
    except UnsupportedFileError as error:
        return Evidence(status=status, reward_problem=error.brief, policy_timed_out=policy_timed_out)
    return Evidence(status=status, reward_json=json, reward_text=text, policy_timed_out=policy_timed_out)


async def verify(
    service: SandboxService,
    sandbox_id: str,
    task: Task,
    *,
    env: Mapping[str, str],
    policy_timed_out: bool,
    enter: EnterPhase,
) -> Verification:
    """Run a task's tests in a sandbox in which the policy has ended.

    Args:
        service: drives the sandbox.
        sandbox_id: the sandbox.
        task: whose tests.
        env: variables of the tests; see `tests_environment`.
        policy_timed_out: the policy was stopped by its time limit.
        enter: told the phase that an error would belong to.

    Raises:
        DsecError: a step failed; `dsec.verification.faults` says what that makes of the attempt.
    """
    enter(Phase.VERIFY)
    await service.end_processes(sandbox_id)
    enter(Phase.CLEAR)
    await clear(service, sandbox_id)
    enter(Phase.VERIFY)
    archive = pack_folder(task.tests, prefix="tests", directories=("logs", "logs/verifier"))
    await service.upload(sandbox_id, "/", single_chunk(archive), user=ROOT)
    request = CommandRequest(
        argv=script_argv(task.tests / "test.sh", "/tests/test.sh"),
        env=dict(env),
        user=task.verifier_user,
        timeout_s=task.verifier_timeout_s,
        output_limit_bytes=TESTS_OUTPUT_BYTES,
    )
    output = CommandOutput.of(await service.run(sandbox_id, request))
    await service.end_processes(sandbox_id)
    evidence = await _evidence(service, sandbox_id, output, policy_timed_out)
    return Verification(verdict=judge(evidence), tests=output)


async def _empty(service: SandboxService, sandbox_id: str, path: str) -> None:
    """Remove what is in a directory but keep the directory, whose owner and mode are the image's."""
    try:
        entries = await service.list_files(sandbox_id, path, user=ROOT)
    except PathNotFoundError:
        return
    for entry in entries:
        await _remove(service, sandbox_id, f"{path.rstrip('/')}/{entry.name}")


async def _transplant_path(service: SandboxService, source: str, target: str, path: str) -> None:
    info = await _stat(service, source, path)
    if info is None:
        await _remove(service, target, path)
        return
    if info.kind is FileKind.DIRECTORY:
        await _empty(service, target, path)
        await service.make_directory(target, path, user=ROOT)
        into = path
    elif info.kind is FileKind.FILE:
        await _remove(service, target, path)
        into = path.rpartition("/")[0] or "/"
    else:
        raise UnsupportedFileError(f"{path} is no file or directory ({info.kind.value})")
    stream = bounded(service.download(source, path, user=ROOT), MAXIMUM_TRANSPLANT_BYTES, path)
    await service.upload(target, into, stream, user=ROOT)


async def transplant(service: SandboxService, source: str, target: str, paths: Sequence[str]) -> None:
    """Make the declared paths of a clean sandbox what they are in the attempt's.

    Each path is taken over as a whole: a directory's content replaces the clean one's (what the guest deleted is
    deleted), a file replaces the file, and a path that is missing is removed. Links are copied as links, never
    followed. Devices, FIFOs and sockets stay behind.

    Raises:
        LimitExceededError: a path holds more than 8 GiB.
        UnsupportedFileError: a path is itself a link or a device.
        DsecError: a transfer failed.
    """
    await service.end_processes(source)
    for path in paths:
        await _transplant_path(service, source, target, path)


def transplanted_paths(task: Task, image_workdir: str) -> tuple[str, ...]:
    """Return the paths that verification in a clean sandbox takes over: the declared artifacts, else the workdir.

    Raises:
        TaskFormatError: that would be the whole root.
    """
    paths = task.artifacts or (task.environment.workdir or image_workdir,)
    if "/" in {path.rstrip("/") or "/" for path in paths}:
        raise TaskFormatError(
            f"task {task.name} declares no part of the file system to verify in a clean sandbox",
            resolution="set [environment] workdir or artifacts = ['/path', ...] in task.toml",
        )
    return paths
