#!/bin/sh
# The reward is 1 when hidden tests pass on what is in the working directory, and 0 otherwise.
cd /home/user/intervals || exit 1
if PYTHONDONTWRITEBYTECODE=1 python3 /tests/check.py; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
