"""Settings of a client, and the URLs that carry them."""
