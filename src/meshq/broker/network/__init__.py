"""Replay in a network of brokers: messages without a consumer go back to a broker with one."""
