"""Which work goes first, and which gives way: priorities, headroom, preemption, gangs, fairness; pure decisions."""
