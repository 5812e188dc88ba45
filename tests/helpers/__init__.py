"""What several tests share: small problems, pieces of a run, a browser, a served federation."""
