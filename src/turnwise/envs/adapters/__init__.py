"""Worlds of other packages, and plain functions, as environments of turnwise."""
