"""The promises of each policy of high availability for each failure, and their scenarios."""
