"""The simulated mesh: three linked brokers, their workload, their faults and their accounts."""
