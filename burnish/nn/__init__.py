"""Torch blocks that know no task: distributions, normalisation, small networks."""
