"""The simulated chain: three to five brokers, each linked to its neighbours only, with faults and accounts."""
