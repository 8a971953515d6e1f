"""Where an episode's sandbox is while its model thinks, and how its files come back."""
