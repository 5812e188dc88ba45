"""From settings to a finished run, whoever drives it, and what can be read from one."""
