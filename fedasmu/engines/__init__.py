"""Who makes the steps: PyTorch or the C++ engine, by the same contract, rule and goal."""
