"""The command line: the one place where components, parts and flows are put together."""
