"""The simulated broker: its workload, its faults and its accounts."""
