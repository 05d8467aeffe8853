"""How messages go: settled, back, elsewhere, expired, due later."""
