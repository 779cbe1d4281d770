"""Named experiments: a recipe is a frozen dataclass ``Config`` that composes components and has ``run``."""
