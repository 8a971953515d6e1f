"""Waiting, for thousands of combinations at a time: the formulas of `dsec.costs.waiting` and `.burst` on numpy arrays.

Erlang's C is computed from Poisson probabilities instead of the recursion, B(c) = p(c; a) / P(c; a) with the
probability and the distribution function of a Poisson variable of mean a, so that 64,000 servers cost what one costs.
A test holds these arrays against the scalar formulas.

A task of R rounds comes R times, and whoever arrived together comes back together. Over long windows the counts of
calls therefore vary more than Poisson's: their index of dispersion is E[R²] / E[R], and it takes the place of the
gaps' squared coefficient of variation in the Allen-Cunneen formula, as heavy-traffic theory has it. (Sampled against
the simulator: three rounds wait three times as long as the textbook's formula says, at 94 % load and at 87 %.)

For the same reason the waits of one task's rounds are not independent. They are taken as equal: a task waits R times as
long as one call, with probability C; a wait is exponential with mean v s / (c - a), v half the sum of both
variations. Waits for the model and for cores are added as if both had the slower rate. Both never promise too much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def erlang_c(offered: Floats, servers: Floats) -> Floats:
    """Return the probability of waiting (M/M/c); 1 where the utilisation is 1 or more."""
    import numpy as np
    from scipy.special import gammaincc, gammaln, xlogy

    stable = offered < servers
    load = np.where(stable, offered, 0.5)
    count = np.where(stable, servers, 1.0)
    blocked = np.exp(xlogy(count, load) - load - gammaln(count + 1)) / gammaincc(count + 1, load)
    share = load / count
    return np.where(stable, blocked / (1 - share * (1 - blocked)), 1.0)


def mean_wait_s(offered: Floats, servers: Floats, service_s: Floats, variation: Floats) -> tuple[Floats, Floats]:
    """Return the probability of waiting and the mean wait of those who wait; infinite where the queue grows.

    Args:
        offered: work in servers, λ s.
        servers: how many there are.
        service_s: mean time of a piece.
        variation: half the sum of the squared coefficients of variation of gaps and services.
    """
    import numpy as np

    waits = np.where(variation > 0, erlang_c(offered, servers), 0.0)
    room = np.where(offered < servers, servers - offered, np.nan)
    each_s = np.where(variation > 0, variation * service_s / room, 0.0)
    return waits, np.where(np.isnan(room) & (variation > 0), np.inf, np.nan_to_num(each_s))


def share_within(slack_s: Floats, waits: tuple[Floats, Floats], each_s: tuple[Floats, Floats]) -> Floats:
    """Return the probability that a task's waits together stay within a slack.

    Args:
        slack_s: what the deadline leaves; negative: never.
        waits: probability of a real wait at each of two resources.
        each_s: what a task waits there on average, over all its rounds, if it waits.
    """
    import numpy as np

    slower_s = np.maximum(np.where(waits[0] > 0, each_s[0], 0.0), np.where(waits[1] > 0, each_s[1], 0.0))
    scaled = np.where(slower_s > 0, np.maximum(slack_s, 0.0) / np.where(slower_s > 0, slower_s, 1.0), np.inf)
    once = waits[0] * (1 - waits[1]) + waits[1] * (1 - waits[0])
    twice = waits[0] * waits[1]
    # Of one real wait P(> x) = exp(-x), of two of them together exp(-x) (1 + x).
    late = np.exp(-scaled) * (once + twice * (1 + np.where(np.isinf(scaled), 0.0, scaled)))
    return np.where(slack_s < 0, 0.0, 1 - late)


def burst_waits_s(pieces: float, servers: Floats, service_s: Floats) -> Floats:
    """Return the mean wait of a burst on idle servers; see `dsec.costs.burst`."""
    import numpy as np

    count = np.maximum(np.floor(servers), 1.0)
    waves = np.ceil(pieces / count)
    empty = waves * count - pieces
    waited = count * waves * (waves - 1) / 2 - empty * (waves - 1)
    mean_s: Floats = service_s * waited / pieces
    return mean_s


def burst_share_within(
    slack_s: Floats, pieces: int, servers: tuple[Floats, Floats], round_wait_s: tuple[Floats, Floats]
) -> Floats:
    """Return the share of a burst whose waits in all rounds stay within a slack.

    The i-th piece waits floor(i / c) waves at each resource and in each round, which rises with i, so that the last one
    in time is found by bisection.

    Args:
        slack_s: what the deadline leaves.
        pieces: of the burst.
        servers: at each resource.
        round_wait_s: what one wave costs a task, over all its rounds.
    """
    import numpy as np

    def wait_s(index: Floats) -> Floats:
        return sum(
            (
                np.floor(index / np.maximum(count, 1.0)) * wave
                for count, wave in zip(servers, round_wait_s, strict=True)
            ),
            start=np.zeros_like(index),
        )

    low, high = np.full_like(slack_s, -1.0), np.full_like(slack_s, float(pieces - 1))
    while bool(np.any(low < high)):
        middle = np.ceil((low + high) / 2)
        fits = wait_s(middle) <= slack_s + 1e-9
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return (low + 1) / pieces
