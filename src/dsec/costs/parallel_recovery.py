"""How long a session takes to go on when its environment and its model state come back side by side.

The environment is prepared again. Of the model's state, what was stored is fetched, and what was not is computed
again by replaying the last tokens of the input:

    model = bytes / bandwidth + tokens x time of a replayed token
    ready = max(environment, model) + query      side by side
    ready = environment + model + query          one after the other

where the query asks other systems what of our operations they have committed. Assumes that the two do not share a
link. Source: the chapter, sections 11.5.1 and 11.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelRecovery:
    """How long each part of a recovery takes.

    Attributes:
        environment_s: preparing the environment.
        fetch_s: fetching the stored state of the model.
        replay_s: computing the rest of it again.
        model_s: both together.
        parallel_s: until the session goes on, with both sides at the same time.
        serial_s: the same, one after the other.
        saved_s: the difference.
        binding: the side that ends last: "environment" or "model".
        slack_s: how much longer the other side might take without harm.
    """

    environment_s: float
    fetch_s: float
    replay_s: float
    model_s: float
    parallel_s: float
    serial_s: float
    saved_s: float
    binding: str
    slack_s: float


def parallel_recovery(
    *,
    environment_s: float,
    state_bytes: float = 0.0,
    fetch_bytes_per_s: float = 1.0,
    replayed_tokens: float = 0.0,
    replay_s_per_token: float = 0.0,
    query_s: float = 0.0,
) -> ParallelRecovery:
    """Return how long a session takes to go on.

    Args:
        environment_s: preparing the environment (create and load, or restore).
        state_bytes: state of the model that is fetched from where it was stored.
        fetch_bytes_per_s: rate at which it is fetched.
        replayed_tokens: tokens that are processed again to rebuild what was not stored.
        replay_s_per_token: time of each.
        query_s: asking what has been committed outside, after both.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        ready = max(environment, bytes / rate + tokens · time) + query

    Source:
        the chapter, section 11.5.2
    """
    check_not_negative("environment_s", environment_s, "s")
    check_not_negative("replayed_tokens", replayed_tokens, "token")
    check_not_negative("replay_s_per_token", replay_s_per_token, "s/token")
    check_not_negative("query_s", query_s, "s")
    fetch_s = check_not_negative("state_bytes", state_bytes, "B") / check_positive(
        "fetch_bytes_per_s", fetch_bytes_per_s, "B/s"
    )
    replay_s = replayed_tokens * replay_s_per_token
    model_s = fetch_s + replay_s
    longer_s, shorter_s = max(environment_s, model_s), min(environment_s, model_s)
    return ParallelRecovery(
        environment_s=environment_s,
        fetch_s=fetch_s,
        replay_s=replay_s,
        model_s=model_s,
        parallel_s=longer_s + query_s,
        serial_s=longer_s + shorter_s + query_s,
        saved_s=shorter_s,
        binding="environment" if environment_s >= model_s else "model",
        slack_s=longer_s - shorter_s,
    )
