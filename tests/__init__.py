"""Tests; a package so that they can share small environments, whatever else is installed under this name."""
