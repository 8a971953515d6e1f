"""The live shell of the pools: `dsec.pools` decides, this package does it over the runtime."""
