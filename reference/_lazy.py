"""Import parts of the package at their first use."""

import importlib
import importlib.util


def lazy(
    package: str,
    modules: tuple[str, ...],
    names: dict[str, tuple[str, ...]] | None = None,
    other: str = "",
    folders: dict[str, tuple[str, ...]] | None = None,
):
    """Return `__all__`, `__getattr__` and `__dir__` of a package that imports its modules at their first use.

    The import of the package imports none of these modules. The first use of `package.name` imports the module `name`,
    or the module that defines `name` (PEP 562).

    Args:
        package: `__name__` of the package.
        modules: names of its modules.
        names: {module: the names that the package exports from it}.
        other: the package of the modules for which `package` has no file.
        folders: {folder of the package: the modules in it}; all other modules are in no folder.
    """
    paths = {name: f"{folder}.{name}" for folder, inside in (folders or {}).items() for name in inside}
    home = {name: module for module, module_names in (names or {}).items() for name in module_names}
    public = sorted([*modules, *home])

    def module(name: str):
        here = not other or importlib.util.find_spec(f"{package}.{name}")
        return importlib.import_module(f"{package if here else other}.{paths.get(name, name)}")

    def get(name: str):
        if name in modules:
            return module(name)
        if name in home:
            return getattr(module(home[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return public, get, lambda: public
