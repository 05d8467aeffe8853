"""Sessions of the broker: listeners, connections, sessions, management calls."""
