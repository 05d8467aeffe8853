"""Administration: queues, addresses, message routes and statistics."""
