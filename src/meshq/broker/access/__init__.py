"""Access of clients and nodes: credentials, rights and permissions."""
