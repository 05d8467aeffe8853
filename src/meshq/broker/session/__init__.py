"""Who is there and what they ask for: listeners, connections, sessions, management calls."""
