"""What a gateway is told: where it listens, which models it offers, which backends answer, what projects may spend.

Names carry their unit last; in a file the unit stands in the value instead (``stall_timeout = "60s"``). Written
about in docs/gateway.md, read by `dsec.gateway.config_reading`.
"""

from __future__ import annotations

import enum
from pathlib import Path

from dsec.base.units import MIB
from dsec.model.value import Value
from dsec.routing.backend import BackendKind
from dsec.routing.policy import RoutingPolicy
from dsec.routing.request import Objective

DEFAULT_PORT = 8640
_HOUR_S = 3600.0


class Api(enum.Enum):
    """A protocol in which calls are made. Fronts and backends each speak some of them."""

    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


class ThinkingControl(enum.Enum):
    """How a backend is told how much to think.

    Whatever it is, thinking beyond its budget is also cut where it can be seen: in a stream.
    """

    TOKENS = "tokens"  # A number of tokens: `thinking.budget_tokens` (messages), `thinking_token_budget` (chat).
    EFFORT = "effort"  # A word: `reasoning_effort` (chat), `reasoning.effort` (responses).
    NONE = "none"  # It cannot be told.


class Budget(Value, frozen=True):
    """What may be spent in all. What is absent is not limited.

    Attributes:
        tokens: of all kinds together.
        usd: money, by the prices of the backends.
        calls: calls that reached a backend, however many attempts each took.
    """

    tokens: int | None = None
    usd: float | None = None
    calls: int | None = None


class Thinking(Value, frozen=True):
    """How many thinking tokens are allowed. What is absent is not limited.

    Attributes:
        tokens_per_call: in one call.
        tokens_per_episode: in all calls of one episode together.
    """

    tokens_per_call: int | None = None
    tokens_per_episode: int | None = None


class Door(Value, frozen=True):
    """The gateway's own settings.

    Attributes:
        host, port: where it listens; port 0: any free one.
        state_dir: for keys and ledger; relative to the configuration file.
        open: serve callers without a key, as the project "open".
        maximum_body_bytes: of a request.
        maximum_answer_bytes: of an answer that is not a stream.
        maximum_event_bytes: of one event of a stream.
        body_timeout_s: a request's body has to be here by then, and a connection's first head.
        client_stall_timeout_s: a caller that takes no byte of its stream for so long is cut off.
        maximum_connections: open at once; more are refused.
        ledger_segment_bytes: a ledger file that has grown to this size is followed by the next.
        sync_interval_s: the ledger reaches the disk itself at least so often; the death of a process loses nothing.
        explained_candidates: candidates that the ledger keeps of each decision.
        price_files: further price tables, which count before those that come with dsec.
        record_to: directory in which every answer is recorded for replay; none: not recorded.
        grace_s: at a shutdown, open calls may go on for so long.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    state_dir: str = "gateway"
    open: bool = False
    maximum_body_bytes: int = 32 * MIB
    maximum_answer_bytes: int = 64 * MIB
    maximum_event_bytes: int = 8 * MIB
    body_timeout_s: float = 30.0
    client_stall_timeout_s: float = 300.0
    maximum_connections: int = 16_384
    ledger_segment_bytes: int = 64 * MIB
    sync_interval_s: float = 1.0
    explained_candidates: int = 8
    price_files: tuple[str, ...] = ()
    record_to: str | None = None
    grace_s: float = 30.0


class Model(Value, frozen=True):
    """A name that callers ask for, and how its calls are treated.

    Attributes:
        groups: model groups whose backends may answer; none: the group of the same name.
        attempts: at most, for one call, all before the first byte of its answer.
        queue_timeout_s: a call waits for a slot at most so long.
        first_byte_timeout_s: an answer has to begin by then; one that is no stream has to be here as a whole.
        stall_timeout_s: longest silence within a stream.
        deadline_s: longest whole call; a caller may ask for less.
        hedge_after_s: send a second attempt to another backend when the first is silent for so long; none: never.
        objective: what a good backend is.
        required_success: share of calls that must succeed within their deadline (objective "price").
        expected_output_tokens: of a call that does not say more closely.
        maximum_output_tokens: most that one call may bring; what a call without its own limit is held to be able to.
        thinking: budgets of thinking.
        accept_other_models: pass on answers that name another model than the one asked for.
    """

    groups: tuple[str, ...] = ()
    attempts: int = 3
    queue_timeout_s: float = 120.0
    first_byte_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    deadline_s: float = 1 * _HOUR_S
    hedge_after_s: float | None = None
    objective: Objective = Objective.FIRST_TOKEN
    required_success: float = 0.0
    expected_output_tokens: int = 500
    maximum_output_tokens: int = 65_536
    thinking: Thinking = Thinking()
    accept_other_models: bool = False


class Prices(Value, frozen=True):
    """Prices of a backend by the token. What is absent is not sold."""

    input_usd_per_mtoken: float | None = None
    output_usd_per_mtoken: float | None = None
    cache_write_usd_per_mtoken: float | None = None
    cache_read_usd_per_mtoken: float | None = None


class Cache(Value, frozen=True):
    """How a backend keeps prefixes; see `dsec.routing.backend.PrefixCache`."""

    capacity_tokens: int | None = None
    lifetime_s: float | None = None
    minimum_tokens: int = 0


class Step(Value, frozen=True):
    """The time from one output token to the next with so many calls side by side."""

    calls: int
    token_time_s: float


class Service(Value, frozen=True):
    """One backend: an endpoint that serves one model.

    Attributes:
        name: unique here.
        group: the model group; backends of a group give equally good answers.
        url: its base, such as ``http://10.0.0.7:8000/v1``; for a replay the directory of recordings.
        kind: the protocol family.
        apis: what it speaks; none: chat for openai, messages for anthropic.
        model: what the model is called there; empty: as the group.
        aliases: further names under which it may answer.
        key_env, key_file: where its own key is; neither: it needs none.
        headers: sent with every request, such as an organisation; never a key.
        connect_timeout_s: a connection has to stand by then.
        thinking_control: how it is told how much to think; none: by numbers where it speaks messages, else not at all.
        slots, waiting, context_tokens, requests_per_minute, tokens_per_minute: see `dsec.routing.backend.Limits`.
        pace: time per token by calls side by side.
        prefill_tokens_per_s, cached_tokens_per_s, network_s: see `dsec.routing.backend.Backend`.
        prices: by the token, as written here.
        price_list: or: the model's name in a price table, of `price_files` or of those that come with dsec.
        reserved_usd_per_h: price of an hour of it, for one that is paid by time.
        success: probability that an answer passes.
        keeps_prefixes: whether it caches prefixes at all.
        cache: how.
        replay_speed: of a replay, how many times faster than recorded; infinite: at once.
        replay_conversations: of a replay, whether a call gets the answer that was recorded at its place in its
            conversation, and not the next one of those that were recorded for the same bytes.
    """

    name: str
    group: str
    url: str
    kind: BackendKind = BackendKind.OPENAI
    apis: tuple[Api, ...] = ()
    model: str = ""
    aliases: tuple[str, ...] = ()
    key_env: str | None = None
    key_file: str | None = None
    headers: dict[str, str] = {}
    connect_timeout_s: float = 5.0
    thinking_control: ThinkingControl | None = None
    slots: int | None = None
    waiting: int = 256
    context_tokens: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    pace: tuple[Step, ...] = ()
    prefill_tokens_per_s: float | None = None
    cached_tokens_per_s: float | None = None
    network_s: float = 0.0
    prices: Prices | None = None
    price_list: str | None = None
    reserved_usd_per_h: float | None = None
    success: float = 1.0
    keeps_prefixes: bool = True
    cache: Cache = Cache()
    replay_speed: float = 1.0
    replay_conversations: bool = False

    @property
    def spoken(self) -> tuple[Api, ...]:
        """What it speaks."""
        default = {BackendKind.ANTHROPIC: (Api.MESSAGES,), BackendKind.REPLAY: tuple(Api)}
        return self.apis or default.get(self.kind, (Api.CHAT,))

    @property
    def control(self) -> ThinkingControl:
        """How it is told how much to think."""
        if self.thinking_control is not None:
            return self.thinking_control
        return ThinkingControl.TOKENS if self.kind is BackendKind.ANTHROPIC else ThinkingControl.NONE


class Project(Value, frozen=True):
    """What a project may spend, and its share of what is scarce.

    Attributes:
        weight: its share beside other projects that wait.
        budget: of all its keys together.
        thinking: budgets of thinking, where they are stricter than the model's.
    """

    weight: float = 1.0
    budget: Budget = Budget()
    thinking: Thinking = Thinking()


class GatewayConfig(Value, frozen=True):
    """A whole configuration.

    Attributes:
        gateway: the gateway's own settings.
        routing: how backends are chosen, left alone and left out.
        models: what callers may ask for, by name.
        backends: who answers.
        projects: by name; a project that is not named here has no budget of its own.
    """

    gateway: Door = Door()
    routing: RoutingPolicy = RoutingPolicy()
    models: dict[str, Model] = {}
    backends: tuple[Service, ...] = ()
    projects: dict[str, Project] = {}

    def groups(self, model: str) -> tuple[str, ...]:
        """Return the model groups that answer to a name."""
        found = self.models.get(model)
        return (found.groups if found is not None else ()) or (model,)

    def model(self, name: str) -> Model:
        """Return how calls of a name are treated."""
        return self.models.get(name, Model())


def state_directory(config: GatewayConfig, file: Path) -> Path:
    """Return where keys and ledger are, for a configuration read from `file`."""
    return file.parent / config.gateway.state_dir
