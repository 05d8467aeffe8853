"""The order of the journal: release of what is durable, high watermarks, windows of duplicate ids."""
