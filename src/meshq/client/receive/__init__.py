"""Receiving: consumers, deliveries, body streams, workers and answers to requests."""
