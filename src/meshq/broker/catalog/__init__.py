"""What a broker knows by name: addresses, queues, diverts, settings, and the queues of other nodes."""
