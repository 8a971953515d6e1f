"""Parse a task folder in the Harbor format.

::

    <task>/
      task.toml                  limits, image, labels
      instruction.md             what the policy is told
      environment/Dockerfile     or [environment] docker_image
      tests/test.sh              writes /logs/verifier/reward.txt or reward.json
      solution/solve.sh          the oracle (optional)

What the format knows and DSec cannot give (several steps, other services, accelerators, Windows) is collected in
`Task.unsupported`, so that a task set can be listed and validated anywhere, and is an error when the task is to run.
Source: the public format description of Harbor, schema 1.4, and its older spellings.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath

from dsec.base.errors import TaskFormatError
from dsec.model.sandbox import MINIMUM_MEMORY_BYTES, Resources
from dsec.worker.tasks.document import Document, read_text
from dsec.worker.tasks.fields import Fields
from dsec.worker.tasks.task import Task, TaskEnvironment

DEFAULT_AGENT_TIMEOUT_S = 600.0
DEFAULT_VERIFIER_TIMEOUT_S = 600.0
NETWORK_MODES = ("public", "no-network", "allowlist")


def _workdir(fields: Fields) -> str | None:
    workdir = fields.text("workdir")
    if workdir is not None and (not workdir.startswith("/") or ".." in PurePosixPath(workdir).parts):
        raise fields.fail("workdir", f"is {workdir!r}; it must be an absolute path without '..'")
    return workdir


def _resources(fields: Fields) -> Resources:
    cpus = fields.number("cpus", above=0, most=1024)
    memory = fields.size_bytes("memory_mb", "memory")
    if memory is not None and memory < MINIMUM_MEMORY_BYTES:
        raise fields.fail("memory_mb", f"is below {MINIMUM_MEMORY_BYTES >> 20} MiB, with which nothing starts")
    return Resources(
        cpu_millis=None if cpus is None else max(1, round(cpus * 1000)),
        memory_bytes=memory,
        disk_bytes=fields.size_bytes("storage_mb", "storage"),
    )


def _network(fields: Fields) -> tuple[bool | None, tuple[str, ...]]:
    """Return (whether the open internet is asked for, hosts asked for)."""
    mode = fields.choice("network_mode", NETWORK_MODES)
    hosts = fields.texts("allowed_hosts")
    internet = fields.flag("allow_internet")
    if hosts and mode != "allowlist":
        raise fields.fail("allowed_hosts", "needs network_mode = 'allowlist'")
    if mode is None:
        return internet, ()
    return mode == "public", hosts


def _environment(document: Document, folder: Path) -> tuple[TaskEnvironment, dict[str, str], tuple[str, ...]]:
    fields = Fields.of(document, "environment")
    unsupported: dict[str, str] = {}
    if fields.number("gpus", above=-1, most=1024):
        unsupported["environment.gpus"] = "a GPU in the sandbox"
    fields.texts("gpu_types")  # Says which GPU, and nothing without `gpus`.
    if fields.take("tpu") is not None:
        unsupported["environment.tpu"] = "a TPU in the sandbox"
    if (fields.text("os") or "linux").lower() != "linux":
        unsupported["environment.os"] = "a sandbox that is not Linux"
    for key, what in (("mcp_servers", "MCP servers"), ("healthcheck", "health checks"), ("skills_dir", "skills")):
        if fields.take(key):
            unsupported[f"environment.{key}"] = what
    public, hosts = _network(fields)
    dockerfile = folder / "environment" / "Dockerfile"
    environment = TaskEnvironment(
        docker_image=fields.text("docker_image"),
        dockerfile=dockerfile if dockerfile.is_file() else None,
        build_timeout_s=fields.seconds("build_timeout_sec", 600.0),
        resources=_resources(fields),
        public_network=public,
        allowed_hosts=hosts,
        workdir=_workdir(fields),
        env=fields.variables("env"),
    )
    for name in ("docker-compose.yaml", "docker-compose.yml"):
        if (folder / "environment" / name).exists():
            unsupported[f"environment/{name}"] = "several services in one task"
    if environment.docker_image is None and environment.dockerfile is None:
        raise TaskFormatError(
            f"{document.path}: no image: neither environment/Dockerfile nor [environment] docker_image",
            resolution="add one of the two",
        )
    return environment, unsupported, fields.unknown()


def _phase_network(fields: Fields, table: str, unsupported: dict[str, str]) -> None:
    mode = fields.choice("network_mode", NETWORK_MODES)
    if mode not in (None, "no-network") or fields.texts("allowed_hosts"):
        unsupported[f"{table}.network_mode"] = "another network for one phase of the task"


def _artifacts(top: Fields) -> tuple[str, ...]:
    """Return the absolute source paths of the artifacts; each is a path or a table with `source`."""
    paths = []
    entries = top.take("artifacts") or []
    for entry in entries if isinstance(entries, list) else [entries]:
        source = entry.get("source") if isinstance(entry, dict) else entry
        if not isinstance(source, str) or ".." in PurePosixPath(source).parts:
            raise top.fail("artifacts", f"holds {entry!r}, which is not a path without '..'")
        if source.startswith("/"):
            paths.append(source)
    return tuple(paths)


def _check_script(path: Path, what: str) -> None:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise TaskFormatError(f"{path} is missing", resolution=f"add the script that {what}") from None
    if not stat.S_ISREG(mode):
        raise TaskFormatError(f"{path} is not a regular file")


def parse_task(folder: Path, *, name: str | None = None) -> Task:
    """Read and check one task folder.

    Args:
        folder: the folder that holds ``task.toml``.
        name: the task's name; None: the folder's.

    Raises:
        TaskFormatError: the folder is broken; the brief says which file and, where there is one, which line.
    """
    document = Document.read(folder / "task.toml")
    instruction = read_text(folder / "instruction.md")
    _check_script(folder / "tests" / "test.sh", "checks the result and writes /logs/verifier/reward.txt")
    if (folder / "solution").exists():
        _check_script(folder / "solution" / "solve.sh", "solves the task, or remove the folder 'solution'")
    environment, unsupported, unknown = _environment(document, folder)
    top, agent = Fields(document, "", document.values), Fields.of(document, "agent")
    verifier, solution = Fields.of(document, "verifier"), Fields.of(document, "solution")
    _phase_network(agent, "agent", unsupported)
    _phase_network(verifier, "verifier", unsupported)
    if verifier.choice("environment_mode", ("shared", "separate")) == "separate" or verifier.take("environment"):
        unsupported["verifier.environment"] = "an environment of the verifier's own"
    if verifier.take("collect"):
        unsupported["verifier.collect"] = "commands in other services"
    if top.take("steps"):
        unsupported["steps"] = "tasks of several steps"
    for key in ("version", "schema_version", "source", "multi_step_reward_strategy", "task"):
        top.take(key)
    for key in ("metadata", "agent", "verifier", "environment", "solution"):
        top.take(key)
    return Task(
        name=name or folder.name,
        folder=folder,
        instruction=instruction,
        environment=environment,
        agent_timeout_s=agent.seconds("timeout_sec", DEFAULT_AGENT_TIMEOUT_S),
        agent_user=agent.user("user"),
        verifier_timeout_s=verifier.seconds("timeout_sec", DEFAULT_VERIFIER_TIMEOUT_S),
        verifier_user=verifier.user("user") or "0",
        verifier_env=verifier.variables("env"),
        solution_env=solution.variables("env"),
        artifacts=_artifacts(top),
        metadata=document.table("metadata"),
        unsupported=unsupported,
        unknown_keys=(*top.unknown(), *agent.unknown(), *verifier.unknown(), *solution.unknown(), *unknown),
    )
