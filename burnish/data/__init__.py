"""Experience: rollouts in memory, episodes and their durable log, datasets in and out, statistics."""
