"""The same server and the same sessions, for real: over TLS, with keys, and safe against a crash at any moment."""
