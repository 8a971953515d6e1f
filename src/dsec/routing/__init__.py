"""Which model service answers a call, and why: pure decisions over what is known of the services."""
