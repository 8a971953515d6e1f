"""Where a chat model is asked, and on which terms."""

from __future__ import annotations

from dsec.model.value import Value


class ModelEndpoint(Value, frozen=True, omit_defaults=True):
    """A chat model that decides.

    Attributes:
        url: of an OpenAI-compatible endpoint, up to and with its version, such as ``http://127.0.0.1:8000/v1``.
        name: of the model there; empty: the first that the endpoint lists.
        key_variable: environment variable of the worker that holds the bearer token; empty: none is sent.
        maximum_tokens: of an answer.
        temperature: None: the endpoint's own.
        answer_s: seconds until an answer that goes on is cut.
        silence_s: seconds without a byte until the endpoint is given up.
        input_usd, cached_usd, output_usd: for a million tokens; None: nobody knows, and no cost is claimed.
    """

    url: str
    name: str = ""
    key_variable: str = ""
    maximum_tokens: int = 8192
    temperature: float | None = None
    answer_s: float = 600.0
    silence_s: float = 120.0
    input_usd: float | None = None
    cached_usd: float | None = None
    output_usd: float | None = None
