"""Policies: observation to action chunk, with log-probability."""
