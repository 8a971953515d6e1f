"""Closed intervals of time, as pairs of a beginning and an end."""


def merge(intervals):
    """Return the union of `intervals`, as sorted intervals that do not touch."""
    merged = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return merged


def total(intervals):
    """Return the time that at least one of `intervals` covers."""
    return sum(end - begin for begin, end in merge(intervals))
