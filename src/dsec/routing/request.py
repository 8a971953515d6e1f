"""What the choice of a backend needs to know of a call; nothing of what is in it but its prefix's fingerprint."""

from __future__ import annotations

import enum
import math

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value


class Objective(enum.Enum):
    """What a good choice is."""

    FIRST_TOKEN = "first_token"  # The answer begins as early as can be.
    COMPLETION = "completion"  # It ends as early as can be.
    PRICE = "price"  # A successful answer costs as little as can be, within the deadline and the required success.


class RouteRequest(Value, frozen=True):
    """One call that needs a backend.

    Attributes:
        model: the name that the caller gave: a model group, or a route that stands for several.
        blocks: fingerprints of the prompt's prefixes, block by block (`dsec.routing.blocks.prefix_blocks`).
        input_tokens: of the whole prompt.
        output_tokens: the answer's expected length, without thinking.
        thinking_tokens: thinking that it is allowed; None: as much as the model likes.
        maximum_output_tokens: output that it may use; counts for the context and the limit of tokens. 0: as expected.
        cacheable_tokens: input that the caller asks to be kept; it is paid as a cache write where it was not found.
        project: whose call it is.
        episode: calls of one episode like to stay on one backend; empty: none.
        objective: what a good choice is.
        complete_within_s: the whole answer is of use only within this time from now; None: at any time.
        required_success: share of such calls that must succeed in time; binds with the objective PRICE.
        excluded: backends that this call was at already.
    """

    model: str
    blocks: tuple[int, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int | None = None
    maximum_output_tokens: int = 0
    cacheable_tokens: int = 0
    project: str = ""
    episode: str = ""
    objective: Objective = Objective.FIRST_TOKEN
    complete_within_s: float | None = None
    required_success: float = 0.0
    excluded: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("input_tokens", "output_tokens", "maximum_output_tokens", "cacheable_tokens"):
            if getattr(self, name) < 0:
                raise InvalidRequestError(
                    f"{name} is {getattr(self, name)}", resolution=f"give {name} as a whole number of at least 0"
                )
        if self.thinking_tokens is not None and self.thinking_tokens < 0:
            raise InvalidRequestError(
                f"thinking_tokens is {self.thinking_tokens}", resolution="give a whole number of at least 0"
            )
        if self.complete_within_s is not None and not (
            math.isfinite(self.complete_within_s) and self.complete_within_s > 0
        ):
            raise InvalidRequestError(
                f"complete_within_s is {self.complete_within_s}", resolution="give a time above 0 in seconds"
            )
        if not 0 <= self.required_success <= 1:
            raise InvalidRequestError(
                f"required_success is {self.required_success}", resolution="give a share between 0 and 1"
            )

    @property
    def bound_tokens(self) -> int:
        """Tokens that the call may use at most, input and output."""
        return self.input_tokens + max(self.output_tokens, self.maximum_output_tokens)

    def thinking(self, usual_tokens: int) -> int:
        """Return how much thinking to expect of a model that usually spends so much."""
        return usual_tokens if self.thinking_tokens is None else min(usual_tokens, self.thinking_tokens)
