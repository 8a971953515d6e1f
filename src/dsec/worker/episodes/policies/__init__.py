"""Who decides an episode's rounds, and the tools that a model is offered."""
