"""One door to many model services: OpenAI and Anthropic fronts, queues, retries, usage, prices, record and replay."""
