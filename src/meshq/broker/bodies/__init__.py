"""Large bodies: files beside the journal, and their references."""
