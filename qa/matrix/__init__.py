"""The delivery matrix: every feature of delivery in every surrounding, and ablations of each feature."""
