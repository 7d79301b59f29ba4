"""Laws of the accuracy on downstream tasks."""
