"""Training: collect experience with a policy, label what it is worth, update; policies and tasks stay unknown here."""
