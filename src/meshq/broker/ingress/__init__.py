"""Ingress of messages: routing, numbers, duplicate ids, and the release of durable messages."""
