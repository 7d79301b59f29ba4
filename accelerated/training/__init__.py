"""Training: configuration, text, tokenizer, step, loop, sweep, checkpoints."""
