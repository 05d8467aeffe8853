"""Links to a broker: targets, handshake, login, failover, and connection events."""
