"""Which node gets a sandbox: pure decisions over what is known of the nodes."""
