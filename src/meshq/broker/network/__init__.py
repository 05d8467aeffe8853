"""Replay in a network of brokers: what nobody accepts here goes back to where it is wanted."""
