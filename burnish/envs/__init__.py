"""Tasks: what a policy is trained and evaluated on."""
