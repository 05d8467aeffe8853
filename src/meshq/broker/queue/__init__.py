"""One queue: its runs, who gets which message, what stays until it is settled."""
