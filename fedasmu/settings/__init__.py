"""A recipe's sections, from TOML to checked and frozen settings, and what is said of mistakes in them."""
