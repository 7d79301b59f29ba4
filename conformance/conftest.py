"""Register the plugin unless `-p` has done so."""

from routelaws.conformance.engine import plugin


def pytest_configure(config):
    if not config.pluginmanager.has_plugin(plugin.NAME):
        config.pluginmanager.register(plugin, plugin.NAME)
