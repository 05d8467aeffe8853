"""A quorum of small nodes of our own: witnesses with a journal each, and sessions that ask a majority of them."""
