"""What a run keeps on disk: checkpoints, vectors of devices, the run directory, a failed computation."""
