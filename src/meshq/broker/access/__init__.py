"""Who may do what: credentials, rights and permissions."""
