"""Large bodies: what a broker keeps beside its journal, and who still needs it."""
