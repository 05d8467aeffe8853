"""Connections of clients and peers: acceptors, the handshake, and the bounds of both."""
