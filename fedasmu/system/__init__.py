"""What is asked of the operating system: whole files, a lock, signals, memory."""
