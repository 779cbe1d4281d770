"""Controllers watch a run, adapt it, or stop it."""
