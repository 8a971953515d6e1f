"""What a faster model does to the environment that was prepared behind it.

A tool starts when both the model's decision and its environment are there. Preparation that begins with the model
call is hidden as long as it is the shorter of the two; once the model is faster, the rest of it shows:

    start = max(T_model, T_prepare - lead),      wait = max(T_prepare - lead - T_model, 0),

with a lead by which preparation begins before the call. Four answers are compared, each for a call that comes with
the probability u: prepare on demand, as late as is in time, earlier by the lead, or keep the environment all along.
An environment takes its memory from the start of its preparation to the end of the tool, or to the end of the model
call where no tool call comes. Source: the chapter, section 11.5.2 and figure 11-48.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_probability


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart:
    """When a tool can start.

    Attributes:
        start_s: from the start of the model call.
        ready_s: when the environment is ready, on the same clock; negative: before the call.
        wait_s: from the model's decision to the start of the tool.
        idle_s: from the environment's readiness to the start of the tool.
        binding: what the tool waits for last: "model" or "preparation".
        hidden_preparation_s: preparation that does not lengthen the task.
    """

    start_s: float
    ready_s: float
    wait_s: float
    idle_s: float
    binding: str
    hidden_preparation_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationChoice:
    """One way to have an environment ready, per model call.

    Attributes:
        wait_s: from the model's decision to the start of the tool.
        resident_gib_s: memory over time, on average.
        unused_gib_s: the part of it that served no tool call.
        cost_usd: of memory and preparation, on average.
    """

    wait_s: float
    resident_gib_s: float
    unused_gib_s: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparationChoices:
    """The four ways side by side.

    Attributes:
        on_demand: begun when the call has arrived.
        just_in_time: begun as late as the tool need not wait, at the earliest with the model call.
        early: begun before the model call, by the lead.
        kept: never ended.
    """

    on_demand: PreparationChoice
    just_in_time: PreparationChoice
    early: PreparationChoice
    kept: PreparationChoice


def tool_start(*, model_s: float, preparation_s: float, lead_s: float = 0.0) -> ToolStart:
    """Return when a tool can start whose environment is prepared from `lead_s` before the model call on.

    Raises:
        InvalidRequestError: a time is negative.

    Formula:
        wait = max(preparation - lead - model, 0)

    Source:
        the chapter, section 11.5.2 and figure 11-48
    """
    check_not_negative("model_s", model_s, "s")
    check_not_negative("preparation_s", preparation_s, "s")
    ready_s = preparation_s - check_not_negative("lead_s", lead_s, "s")
    start_s = max(model_s, ready_s)
    return ToolStart(
        start_s=start_s,
        ready_s=ready_s,
        wait_s=start_s - model_s,
        idle_s=start_s - ready_s,
        binding="preparation" if ready_s > model_s else "model",
        hidden_preparation_s=preparation_s - (start_s - model_s),
    )


def preparation_choices(
    *,
    model_s: float,
    preparation_s: float,
    tool_s: float,
    memory_gib: float,
    lead_s: float = 0.0,
    used_share: float = 1.0,
    preparation_work_cpu_s: float = 0.0,
    memory_price_usd_per_gib_s: float = 0.0,
    work_price_usd_per_cpu_s: float = 0.0,
) -> PreparationChoices:
    """Return waiting, memory and cost of four ways to have an environment ready.

    Args:
        model_s: time of a model call.
        preparation_s: time of a preparation.
        tool_s: time of the tool.
        memory_gib: memory of the environment.
        lead_s: how long before the model call the early one is begun.
        used_share: probability that the model call ends in a tool call for this environment.
        preparation_work_cpu_s: processor time of a preparation.
        memory_price_usd_per_gib_s: price of memory.
        work_price_usd_per_cpu_s: price of processor time.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        resident = M (u · (start to end of tool) + (1 - u) · (start to end of model call))

    Source:
        the chapter, section 11.5.2
    """
    early = tool_start(model_s=model_s, preparation_s=preparation_s, lead_s=lead_s)
    beside = tool_start(model_s=model_s, preparation_s=preparation_s)
    check_not_negative("tool_s", tool_s, "s")
    check_not_negative("memory_gib", memory_gib, "GiB")
    check_probability("used_share", used_share)
    check_not_negative("preparation_work_cpu_s", preparation_work_cpu_s, "CPU*s")
    check_not_negative("memory_price_usd_per_gib_s", memory_price_usd_per_gib_s, "USD/GiB/s")
    check_not_negative("work_price_usd_per_cpu_s", work_price_usd_per_cpu_s, "USD/CPU/s")

    def choice(*, wait_s: float, before_s: float, prepared: float) -> PreparationChoice:
        """`before_s` is how long before the model's decision the environment begins to take memory."""
        used = used_share * (before_s + wait_s + tool_s)
        unused = (1 - used_share) * before_s
        resident_gib_s = memory_gib * (used + unused)
        work_usd = prepared * preparation_work_cpu_s * work_price_usd_per_cpu_s
        return PreparationChoice(
            wait_s=wait_s,
            resident_gib_s=resident_gib_s,
            unused_gib_s=memory_gib * unused,
            cost_usd=resident_gib_s * memory_price_usd_per_gib_s + work_usd,
        )

    return PreparationChoices(
        on_demand=choice(wait_s=preparation_s, before_s=0.0, prepared=used_share),
        just_in_time=choice(wait_s=beside.wait_s, before_s=min(preparation_s, model_s), prepared=1.0),
        early=choice(wait_s=early.wait_s, before_s=model_s + lead_s, prepared=1.0),
        kept=choice(wait_s=0.0, before_s=model_s, prepared=0.0),
    )
