"""The session, which outlives its links: frames in, frames out, deadlines."""
