"""The order of the journal: release in placing order, high watermarks, windows of duplicate ids."""
