"""The simulation of a network of brokers."""
