"""The texts of a run: files, tokenizer, tokens and batches. The training loop and `inspect` enter here."""
