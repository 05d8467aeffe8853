"""Sessions of clients and peers: producers, consumers, calls, transactions and large bodies."""
