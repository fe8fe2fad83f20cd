"""What is installed, told from package metadata alone: nothing here imports the packages it names."""

import importlib.metadata
import importlib.util
import platform

PACKAGES = ("moe-prof", "jax", "jaxlib", "libtpu", "numpy", "xprof")


def installed_versions() -> dict[str, str | None]:
    """Version of Python and of each of `PACKAGES`, None for those that are not installed."""
    return {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}


def version_of(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def trace_reader() -> str:
    """`c` if the compiled trace walker is installed, else `python`."""
    return "python" if importlib.util.find_spec("analyzers.reading._walker") is None else "c"
