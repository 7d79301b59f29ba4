"""Each router, by its promises and by the reference."""
