"""Sending: producers, envelopes, batches and large messages."""
