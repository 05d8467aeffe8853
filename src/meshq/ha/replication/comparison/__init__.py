"""Two stores of a pair by replication, compared while traffic goes on."""
