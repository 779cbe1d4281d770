"""Reinforcement-learning post-training of embodied policies."""

__version__ = "0.1.0"
