"""Special inputs and options: every router, layer or model treats them alike."""
