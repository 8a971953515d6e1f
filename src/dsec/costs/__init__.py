"""What work takes and costs: one small module for each formula, with its units and its source."""
