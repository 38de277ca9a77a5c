"""Does a batch say what was sampled: checks before and after every update, seeded faults, replay."""
