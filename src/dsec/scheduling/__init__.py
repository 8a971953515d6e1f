"""Which work goes first, and which gives way: priorities, headroom, preemption, gangs and fairness, as pure decisions."""
