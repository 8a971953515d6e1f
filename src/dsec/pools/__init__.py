"""How many sandboxes to keep ready, when to admit one more, when to try again: pure decisions of one node."""
