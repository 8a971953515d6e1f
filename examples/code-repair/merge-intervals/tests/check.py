"""Compare `intervals` with counting, on many small cases; and see that the visible tests are as they were."""

import hashlib
import itertools
import pathlib
import sys

sys.path.insert(0, "/home/user/intervals")

from intervals import merge, total

VISIBLE = "62818ea8a0af4393427e2b5c16b75f254559d76c5ff08916c0c2c308ab2a3138"
PAIRS = [(begin, end) for begin, end in itertools.product(range(5), repeat=2) if begin < end]

digest = hashlib.sha256(pathlib.Path("/home/user/intervals/test_intervals.py").read_bytes()).hexdigest()
assert digest == VISIBLE, "the visible tests were changed"
for case in itertools.chain.from_iterable(itertools.combinations(PAIRS, size) for size in range(4)):
    covered = {second for begin, end in case for second in range(begin, end)}
    assert total(case) == len(covered), case
    parts = merge(case)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(parts)), case
