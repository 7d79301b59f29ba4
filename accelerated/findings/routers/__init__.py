"""Questions that pairs of runs answer, without a law: which router, how many experts, how many of them per token."""
