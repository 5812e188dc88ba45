"""The parts of the page that are not the report's."""
