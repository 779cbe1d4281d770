"""Experts that see privileged observations: they record demonstrations and label states, and are never deployed."""
