"""Laws of the loss that count the training tokens."""
