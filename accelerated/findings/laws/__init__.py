"""Questions that fitted laws answer: of the losses of each router, of dense models, of other texts and tasks."""
