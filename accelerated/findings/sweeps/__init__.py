"""Read folders of training: a sweep for its report, its registered predictions, comparisons of runs."""
