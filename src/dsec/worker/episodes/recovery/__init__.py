"""What is done about an episode that does not go well: check, repair, escalate, endure, stop."""
