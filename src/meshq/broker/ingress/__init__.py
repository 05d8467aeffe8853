"""Ingress of messages: producers, memory, filters, distribution and placing."""
