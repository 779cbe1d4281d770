"""Labelers decide what experience is worth."""
