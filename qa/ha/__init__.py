"""The simulated pair: two or three brokers over one shared disk, with kills, pauses and lost locks."""
