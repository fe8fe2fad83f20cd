"""The compiled part of the build; everything else is in pyproject.toml.

The trace walker is optional: where there is no C compiler the package installs without it and reads traces
with a slower reader on protobuf.
"""

import sys
from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "analyzers.reading._walker",
            sources=["analyzers/reading/_walker.c"],
            depends=sorted(glob("analyzers/reading/_walker_*.h")),
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-std=gnu11"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
