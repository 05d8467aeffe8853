"""The simulation of a client that sends to several brokers."""
