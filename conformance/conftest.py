"""Registers the plugin, where `-p` has not done so already."""

from routelaws.conformance.engine import plugin


def pytest_configure(config):
    if not config.pluginmanager.has_plugin(plugin.NAME):
        config.pluginmanager.register(plugin, plugin.NAME)
