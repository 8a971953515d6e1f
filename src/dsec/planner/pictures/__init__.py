"""Drawings of what `dsec.planner.picture` describes, for light and dark pages, and a report that holds them."""
