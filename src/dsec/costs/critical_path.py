"""How long a task of R equal rounds takes: the critical path in closed form.

All phases one after the other:

    T = T_queue + T_prepare + Σ (T_model,r + T_tool,r) + T_commit

Where the preparation of an environment runs beside a model call, the tool waits for the later of the two, and the
phase costs their maximum instead of their sum. An environment is prepared once for a task, or in each round anew.

`dsec.costs.timeline` lays out unequal rounds. A faster tool cannot take the path below R · T_model, which is why more
cores do not help a task that waits for its model.

Assumes that rounds never overlap (a call needs the result before it), that times are known, and that a preparation
competes for nothing. Source: the chapter, section 11.1.1; the overlap in sections 11.2.4 and 11.5.2.
"""

from __future__ import annotations

from dsec.costs.checks import check_count, check_not_negative


def _check(rounds: int, **times_s: float) -> None:
    check_count("rounds", rounds)
    for name, value in times_s.items():
        check_not_negative(name, value, "s")


def serial_time_s(
    *,
    rounds: int,
    model_s: float,
    tool_s: float,
    prepare_s: float = 0.0,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
) -> float:
    """Return a task's time when every phase waits for the one before.

    Args:
        rounds: how many, each a model call and a tool.
        model_s: time of a model call.
        tool_s: time of a tool, saving its result included.
        prepare_s: time to prepare the task's one environment; 0 for one that stands ready.
        queue_s: time before anything runs.
        commit_s: time to hand in the result.

    Raises:
        InvalidRequestError: there are no rounds, or a time is negative.

    Formula:
        T = queue + prepare + R · (model + tool) + commit

    Source:
        the chapter, section 11.1.1
    """
    _check(rounds, model_s=model_s, tool_s=tool_s, prepare_s=prepare_s, queue_s=queue_s, commit_s=commit_s)
    return queue_s + prepare_s + rounds * (model_s + tool_s) + commit_s


def overlapped_once_time_s(
    *,
    rounds: int,
    model_s: float,
    tool_s: float,
    prepare_s: float,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
) -> float:
    """Return a task's time when its one environment is prepared beside the first model call.

    Args and errors are those of `serial_time_s`.

    Formula:
        T = queue + max(prepare, model) + tool + (R - 1) · (model + tool) + commit

    Source:
        the chapter, section 11.1.1
    """
    _check(rounds, model_s=model_s, tool_s=tool_s, prepare_s=prepare_s, queue_s=queue_s, commit_s=commit_s)
    return queue_s + max(prepare_s, model_s) + tool_s + (rounds - 1) * (model_s + tool_s) + commit_s


def overlapped_each_round_time_s(
    *,
    rounds: int,
    model_s: float,
    tool_s: float,
    prepare_s: float,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
) -> float:
    """Return a task's time when each round prepares an environment beside its model call.

    Args and errors are those of `serial_time_s`.

    Formula:
        T = queue + R · (max(prepare, model) + tool) + commit

    Source:
        the chapter, section 11.2.4
    """
    _check(rounds, model_s=model_s, tool_s=tool_s, prepare_s=prepare_s, queue_s=queue_s, commit_s=commit_s)
    return queue_s + rounds * (max(prepare_s, model_s) + tool_s) + commit_s


def on_demand_time_s(
    *,
    rounds: int,
    model_s: float,
    tool_s: float,
    prepare_s: float,
    queue_s: float = 0.0,
    commit_s: float = 0.0,
) -> float:
    """Return a task's time when each round prepares its environment after the call has arrived.

    Args and errors are those of `serial_time_s`.

    Formula:
        T = queue + R · (model + prepare + tool) + commit

    Source:
        the chapter, section 11.2.4
    """
    _check(rounds, model_s=model_s, tool_s=tool_s, prepare_s=prepare_s, queue_s=queue_s, commit_s=commit_s)
    return queue_s + rounds * (model_s + prepare_s + tool_s) + commit_s


def model_floor_s(*, rounds: int, model_s: float) -> float:
    """Return the time that no faster tool gets a task below: its model calls, one after the other.

    Raises:
        InvalidRequestError: there are no rounds, or the time is negative.

    Formula:
        T ≥ R · model

    Source:
        the chapter, example 11-9
    """
    _check(rounds, model_s=model_s)
    return rounds * model_s


def elapsed_after_rounds_s(*, rounds: int, model_s: float, tool_s: float) -> float:
    """Return the time that is lost when a task starts over after `rounds` whole rounds.

    It exceeds the tools' own work by the model calls, which have to be made again as well.

    Raises:
        InvalidRequestError: there are no rounds, or a time is negative.

    Formula:
        lost = r · (model + tool)

    Source:
        the chapter, section 11.1.3
    """
    _check(rounds, model_s=model_s, tool_s=tool_s)
    return rounds * (model_s + tool_s)


def overlap_wait_s(*, model_s: float, prepare_s: float) -> float:
    """Return how long a tool waits for an environment whose preparation began with the model call.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        wait = max(prepare - model, 0)

    Source:
        the chapter, section 11.5.2 and figure 11-48
    """
    _check(1, model_s=model_s, prepare_s=prepare_s)
    return max(prepare_s - model_s, 0.0)
