"""Tasks: what a folder in the Harbor format asks for, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dsec.model.sandbox import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnvironment:
    """The sandbox a task wants.

    Attributes:
        docker_image: name of an image in the local store; None: `dockerfile` is built.
        dockerfile: path of ``environment/Dockerfile``, when there is one.
        build_timeout_s: seconds the build may take.
        resources: limits; those the task does not name are the node's defaults.
        public_network: the task says that it needs the open internet; None: it does not say.
        allowed_hosts: hosts the task says that it needs.
        workdir: default directory of commands; None: the image's.
        env: variables of every command, as written: ``${NAME}`` stands for the runner's own variable.
    """

    docker_image: str | None = None
    dockerfile: Path | None = None
    build_timeout_s: float = 600.0
    resources: Resources = field(default_factory=Resources)
    public_network: bool | None = None
    allowed_hosts: tuple[str, ...] = ()
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task folder.

    Attributes:
        name: path of the folder below the directory that was searched.
        folder: where it is on this machine.
        instruction: what the policy is told, Markdown.
        environment: the sandbox it wants.
        agent_timeout_s: seconds the policy may take.
        agent_user: user of the policy's commands; None: the image's.
        verifier_timeout_s: seconds the tests may take.
        verifier_user: user of the tests.
        verifier_env: variables of the tests, as written.
        solution_env: variables of the oracle's solution, as written.
        artifacts: paths that the task declares as its result; they are what verification in a clean sandbox takes over.
        metadata: the task's own labels, untouched.
        unsupported: what the task needs and DSec cannot give, by the key that says so.
        unknown_keys: keys of task.toml that are not understood, kept for the warning.
    """

    name: str
    folder: Path
    instruction: str
    environment: TaskEnvironment
    agent_timeout_s: float
    agent_user: str | None = None
    verifier_timeout_s: float
    verifier_user: str = "0"
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[str, ...] = ()
    metadata: Mapping[str, object] = field(default_factory=dict)
    unsupported: Mapping[str, str] = field(default_factory=dict)
    unknown_keys: tuple[str, ...] = ()

    @property
    def tests(self) -> Path:
        """The folder that holds ``test.sh``."""
        return self.folder / "tests"

    @property
    def solution(self) -> Path:
        """The folder that holds ``solve.sh``, when there is an oracle."""
        return self.folder / "solution"
