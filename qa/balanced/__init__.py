"""The simulated balancers: a front and five targets, or five brokers that balance each other."""
