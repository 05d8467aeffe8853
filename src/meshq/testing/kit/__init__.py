"""The testing kit for users: a cluster of brokers, their network and their faults inside one test, in virtual time."""
