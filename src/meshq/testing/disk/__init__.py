"""The parts of the simulated disk that tests of brokers use instead of a real one."""
