"""A model of the protocol of message groups: the real parts that decide about pins, on links and queues of a model."""
