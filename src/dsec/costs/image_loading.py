"""How an environment's image gets into memory: what each way keeps locally, and how long a link needs at least.

Of a template of V GiB a tool touches T, and writes D of that; every environment has an overhead o of its own. Kept
locally for each environment:

    full copy                     V + o        everything, also what nobody reads
    touched only                  T + o        loaded on demand, private to each
    shared read-only              D + o        only written pages are private; the rest is fetched when it is read
    shared, hot pages local       D + h + o    as before, with h GiB of often read pages kept beside

Beside them one template of V GiB is kept for all. This counts content only: processes and buffers come on top.

A link of B GiB/s that has to bring F GiB of template and install I GiB of pages takes at least (F + I) / B. On-demand
loading does not do less work at that bound, it does it later: pages that are missing when the tool reads them cost
their time then. For n environments behind one link the bound is n times as large.

Assumes that the link is the only limit (no latency, no decompression, no contention) and that sizes are known.
Source: the chapter, example 11-2, figure 11-11 and the text after it.
"""

from __future__ import annotations

from dsec.costs.checks import check_count, check_not_negative, check_positive, check_probability


def full_copy_gib(*, template_gib: float, overhead_gib: float = 0.0) -> float:
    """Return what one environment keeps when its template is copied whole.

    Raises:
        InvalidRequestError: the template is empty, or the overhead negative.

    Formula:
        template + overhead

    Source:
        the chapter, example 11-2
    """
    check_positive("template_gib", template_gib, "GiB")
    return template_gib + check_not_negative("overhead_gib", overhead_gib, "GiB")


def touched_only_gib(*, touched_gib: float, overhead_gib: float = 0.0) -> float:
    """Return what one environment keeps when only what it touches is loaded.

    Raises:
        InvalidRequestError: a size is negative.

    Formula:
        touched + overhead

    Source:
        the chapter, example 11-2
    """
    check_not_negative("touched_gib", touched_gib, "GiB")
    return touched_gib + check_not_negative("overhead_gib", overhead_gib, "GiB")


def shared_read_only_gib(*, dirty_gib: float, hot_gib: float = 0.0, overhead_gib: float = 0.0) -> float:
    """Return what one environment keeps when it shares what it only reads.

    Args:
        dirty_gib: pages it has written.
        hot_gib: read-only pages that it keeps locally all the same, because it reads them often.
        overhead_gib: what managing it takes.

    Raises:
        InvalidRequestError: a size is negative.

    Formula:
        dirty + hot + overhead

    Source:
        the chapter, example 11-2
    """
    check_not_negative("dirty_gib", dirty_gib, "GiB")
    check_not_negative("hot_gib", hot_gib, "GiB")
    return dirty_gib + hot_gib + check_not_negative("overhead_gib", overhead_gib, "GiB")


def fleet_gib(*, environments: int, each_gib: float, shared_gib: float = 0.0) -> float:
    """Return what environments keep together.

    Args:
        environments: how many.
        each_gib: what each keeps for itself.
        shared_gib: what all of them share.

    Raises:
        InvalidRequestError: there are no environments, or a size is negative.

    Formula:
        n · each + shared

    Source:
        the chapter, example 11-2
    """
    check_count("environments", environments)
    check_not_negative("each_gib", each_gib, "GiB")
    return environments * each_gib + check_not_negative("shared_gib", shared_gib, "GiB")


def read_share(*, touched_gib: float, template_gib: float) -> float:
    """Return the share of its template that a tool reads.

    Raises:
        InvalidRequestError: the template is empty, or more is said to be read than there is.

    Formula:
        touched / template

    Source:
        the chapter, section 11.2.2
    """
    check_not_negative("touched_gib", touched_gib, "GiB")
    check_positive("template_gib", template_gib, "GiB")
    return check_probability("touched_gib / template_gib", touched_gib / template_gib)


def load_bound_s(*, fetch_gib: float, install_gib: float, link_gib_per_s: float, environments: int = 1) -> float:
    """Return the least time in which a link fetches a template and installs pages.

    Args:
        fetch_gib: what comes over the link first; 0 for a template that is cached.
        install_gib: what is then loaded into memory over the same link.
        link_gib_per_s: the link's rate.
        environments: how many need that behind the same link.

    Raises:
        InvalidRequestError: a size is negative, the rate is not above zero, or there are no environments.

    Formula:
        T ≥ n · (fetch + install) / B

    Source:
        the chapter, section 11.2.2
    """
    check_not_negative("fetch_gib", fetch_gib, "GiB")
    check_not_negative("install_gib", install_gib, "GiB")
    check_count("environments", environments)
    return environments * (fetch_gib + install_gib) / check_positive("link_gib_per_s", link_gib_per_s, "GiB/s")


def first_tool_end_s(*, start_s: float, missing_gib: float, link_gib_per_s: float, tool_s: float) -> float:
    """Return when the first tool ends: the start, then the pages that it misses, then its own work.

    Raises:
        InvalidRequestError: a time or size is negative, or the rate is not above zero.

    Formula:
        T ≥ start + missing / B + tool

    Source:
        the chapter, section 11.2.2
    """
    check_not_negative("start_s", start_s, "s")
    check_not_negative("missing_gib", missing_gib, "GiB")
    check_not_negative("tool_s", tool_s, "s")
    return start_s + load_bound_s(fetch_gib=0.0, install_gib=missing_gib, link_gib_per_s=link_gib_per_s) + tool_s
