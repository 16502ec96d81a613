"""Ways to evaluate a model in the serving process, one file each."""
