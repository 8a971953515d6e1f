"""What a workload needs, what it costs, and why: combinations of offers and policies, compared by formula."""
