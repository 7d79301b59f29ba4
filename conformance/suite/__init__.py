"""The tests of the suite, one file for each file of the reference, and the generators of their inputs."""
