"""The tests of the suite, a file for each file of the reference, and what generates their inputs."""
