"""The tests of the suite, in folders by what they judge, and the generators of their inputs."""
