"""Many runs as one study: grids of methods and seeds, tuning on held-out data, and the paper's studies."""
