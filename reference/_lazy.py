"""Import parts of the package at their first use."""

import importlib
import importlib.util


def lazy(package: str, modules: tuple[str, ...], names: dict[str, tuple[str, ...]] | None = None, other: str = ""):
    """Return `__all__`, `__getattr__` and `__dir__` of a package whose modules are imported at first use.

    Python calls the `__getattr__` of a module for a name that the module does not have (PEP 562). The first use of
    `package.name` imports the module that the name denotes or that defines it. Importing the package imports no module.

    Args:
        package: its `__name__`.
        modules: its modules.
        names: {module: the names that the package exports from it}.
        other: package of the modules that have no file in this one.
    """
    home = {name: module for module, module_names in (names or {}).items() for name in module_names}
    public = sorted([*modules, *home])

    def module(name: str):
        here = not other or importlib.util.find_spec(f"{package}.{name}")
        return importlib.import_module(f"{package if here else other}.{name}")

    def get(name: str):
        if name in modules:
            return module(name)
        if name in home:
            return getattr(module(home[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return public, get, lambda: public
