"""The policy that knows the answer: every sound task passes with it."""

from __future__ import annotations

from dsec.base.errors import TaskFormatError
from dsec.episode.round import Decision, Done, History
from dsec.episode.tools import Run, UploadArchive
from dsec.worker.policies.port import PolicyContext
from dsec.worker.tasks.archive import pack_folder
from dsec.worker.tasks.script import script_argv
from dsec.worker.tasks.task import Task
from dsec.worker.tasks.variables import resolve_variables


def check_solution(task: Task) -> None:
    """Raise `TaskFormatError` for a task without a solution."""
    if not (task.solution / "solve.sh").is_file():
        raise TaskFormatError(
            f"{task.solution / 'solve.sh'} is missing: task {task.name} has no solution for the oracle",
            resolution="add solution/solve.sh, or leave the task out (--skip-broken does)",
        )


class OraclePolicy:
    """Upload the task's solution and run it, in one round."""

    def __init__(self, context: PolicyContext) -> None:
        check_solution(context.task)
        self._task = context.task
        self._env = resolve_variables(context.task.solution_env, context.environ, task=context.task.name)

    async def next_round(self, history: History) -> Decision | Done:
        if history.rounds:
            return Done(reason="the solution has run")
        upload = UploadArchive(path="/", archive=pack_folder(self._task.solution, prefix="solution"), user="0")
        argv = script_argv(self._task.solution / "solve.sh", "/solution/solve.sh")
        run = Run(argv=argv, env=self._env, timeout_s=self._task.agent_timeout_s)
        return Decision(calls=(upload, run))
