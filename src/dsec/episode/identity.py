"""Who did what: ids of episodes and operations, and the model that decided.

A task, each of its attempts (an episode), each round, each operation and each execution of an operation have an id or
number of their own. A result that is delivered twice and work that is done twice are different things, and only ids
tell them apart. Source: the chapter, section 11.1.3.
"""

from __future__ import annotations

import re

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

MAXIMUM_ID_LENGTH = 63
_EPISODE_ID = re.compile(r"ep-[a-z0-9]+(?:-[a-z0-9]+)*")
_OPERATION_ID = re.compile(r"ep-[a-z0-9-]+\.r[1-9][0-9]*\.d[1-9][0-9]*\.c[0-9]+")


class ModelIdentity(Value, frozen=True, omit_defaults=True):
    """A model as it was asked for and as it named itself.

    Attributes:
        name: as asked for; empty: no model decides, such as in a script.
        version: as its service reported it with the answer; empty: not reported.
    """

    name: str = ""
    version: str = ""


class EpisodeIdentity(Value, frozen=True, omit_defaults=True):
    """What an episode is, from its first record on.

    Attributes:
        episode_id: ``ep-...``; one attempt at one task.
        task: the task's name.
        attempt: number of the attempt at it, from 1.
        seed: of everything random in it that we draw.
        policy: of the loop, as named on the command line.
        model: what is asked first; each round says what answered.
        workspace: version of the workspace at the start.
    """

    episode_id: str
    task: str
    attempt: int = 1
    seed: int = 0
    policy: str = ""
    model: ModelIdentity = ModelIdentity()
    workspace: str = ""

    def __post_init__(self) -> None:
        check_episode_id(self.episode_id)


def check_episode_id(value: str) -> str:
    """Return `value` if it is an episode id: it names a directory, and keys in an object store.

    Raises:
        InvalidRequestError: it is not.
    """
    if len(value) > MAXIMUM_ID_LENGTH or _EPISODE_ID.fullmatch(value) is None:
        raise InvalidRequestError(
            f"{value[:80]!r} is not an episode id",
            resolution="use 'ep-' followed by lower-case letters, digits and dashes, at most 63 characters",
        )
    return value


def operation_id(episode_id: str, *, number: int, decision: int, call: int) -> str:
    """Return the id of an operation: known before it is run, and the same whenever it is run again.

    Args:
        episode_id: of its episode.
        number: of its round, from 1.
        decision: which decision of that round it belongs to, from 1: a decision that was given up is followed by
            another, whose calls are other operations.
        call: its place among the decision's calls, from 0.
    """
    return f"{episode_id}.r{number}.d{decision}.c{call}"


def check_operation_id(value: str) -> str:
    """Return `value` if it is an operation id.

    Raises:
        InvalidRequestError: it is not.
    """
    if _OPERATION_ID.fullmatch(value) is None:
        raise InvalidRequestError(
            f"{value[:80]!r} is not an operation id", resolution="it looks like ep-7k2m9x.r3.d1.c0"
        )
    return value
