"""Driving: scenes, importers, a generator, and a vector simulator on recorded and synthetic roads."""
