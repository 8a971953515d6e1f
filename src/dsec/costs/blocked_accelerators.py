"""What a cheaper verification costs when the training group waits for it.

Verification saves accelerator time but ends later; the training group keeps n accelerators and waits d seconds
longer:

    net = n d - saved      (positive: the system as a whole uses more).

The saving pays while the blocked group is smaller than saved / d. Assumes that the group can do nothing else while it
waits. Source: the chapter, section 11.3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedAccelerators:
    """Accelerator time saved in verification against that lost in waiting.

    Attributes:
        waited_gpu_s: added waiting of the blocked group.
        net_gpu_s: waiting minus saving; negative when the system saves.
        pays: whether the system uses less in all.
        break_even_gpus: size of the blocked group at which nothing is won or lost; infinite when nobody waits.
    """

    waited_gpu_s: float
    net_gpu_s: float
    pays: bool
    break_even_gpus: float


def blocked_accelerators(*, saved_gpu_s: float, blocked_gpus: float, delay_s: float) -> BlockedAccelerators:
    """Return whether saving `saved_gpu_s` is worth that `blocked_gpus` accelerators wait `delay_s` longer.

    Raises:
        InvalidRequestError: an input is negative.

    Formula:
        net = n · delay - saved,   break-even n = saved / delay

    Source:
        the chapter, section 11.3.4
    """
    check_not_negative("saved_gpu_s", saved_gpu_s, "GPU*s")
    check_not_negative("blocked_gpus", blocked_gpus, "GPU")
    check_not_negative("delay_s", delay_s, "s")
    waited = blocked_gpus * delay_s
    return BlockedAccelerators(
        waited_gpu_s=waited,
        net_gpu_s=waited - saved_gpu_s,
        pays=waited < saved_gpu_s,
        break_even_gpus=saved_gpu_s / delay_s if delay_s else math.inf,
    )
