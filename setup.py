"""The compiled part of the build; everything else is in pyproject.toml.

Both extensions are optional: where there is no C compiler the package installs without them, reads traces with
a slower reader on protobuf and counts with numpy.
"""

import sys
from glob import glob

from setuptools import Extension, setup

HEADERS = sorted(glob("analyzers/reading/_walker_*.h"))


def extension(name: str) -> Extension:
    """Return the extension whose one source file is called as it is."""
    return Extension(
        name,
        sources=[f"{name.replace('.', '/')}.c"],
        depends=HEADERS,
        extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-std=gnu11"],
        py_limited_api=True,
        optional=True,
    )


setup(
    ext_modules=[extension("analyzers.reading._walker"), extension("analyzers.counting._groupby")],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
