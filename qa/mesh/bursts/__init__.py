"""The parts of the mesh's workload that send bursts of messages to a queue of their own."""
