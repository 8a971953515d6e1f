import unittest

from intervals import merge, total


class IntervalsTest(unittest.TestCase):
    def test_apart(self):
        self.assertEqual(merge([(5, 6), (1, 2)]), [(1, 2), (5, 6)])

    def test_overlapping(self):
        self.assertEqual(merge([(1, 4), (3, 6)]), [(1, 6)])

    def test_within(self):
        self.assertEqual(merge([(0, 30), (9, 10), (19, 20)]), [(0, 30)])

    def test_total(self):
        self.assertEqual(total([(0, 30), (9, 10)]), 30)


if __name__ == "__main__":
    unittest.main()
