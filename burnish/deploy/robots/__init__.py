"""Robots that the runtime drives, one file each; how their readings become a policy's observation is in ``wiring``."""
