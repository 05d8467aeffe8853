"""The session, which outlives its connections: frames in, frames out, deadlines."""
