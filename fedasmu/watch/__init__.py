"""A page that follows runs while they work, from their directories alone."""
