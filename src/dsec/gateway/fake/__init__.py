"""A simulated model backend: `dsec gateway fake`."""
