"""The live shell of saved state: checkpoints, forks, snapshots, pauses, migration and fingerprints of one node."""
