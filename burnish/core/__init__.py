"""Contracts and values that every other part of burnish shares; numpy and the standard library only."""
