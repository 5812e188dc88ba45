"""The same server and the same sessions, for real: over TLS, with keys, and safe against a crash at any moment."""

WIRE = 1  # the version of routes and frames
