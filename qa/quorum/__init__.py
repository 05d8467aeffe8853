"""The simulation of a quorum of witnesses: the product's deciders over a network, disks and clocks of a model."""
