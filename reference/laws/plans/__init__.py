"""What to do with a law: the best model for a budget, and the most informative next run."""
