"""Group commit: records get positions at once, and are written together."""
