"""The server and its desk: versions, staleness, the ledger, what is measured. No clock, no socket, no thread."""
