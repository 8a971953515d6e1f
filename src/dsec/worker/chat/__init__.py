"""Chat models: what a policy asks, what is answered, and the driver for any OpenAI-compatible endpoint."""
