"""Property tests that hold a backend to the reference."""
