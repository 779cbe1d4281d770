"""Objectives say how to learn from labelled experience."""
