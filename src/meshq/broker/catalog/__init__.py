"""The catalog of a broker: addresses, queues, diverts, settings, and the queues of other nodes."""
