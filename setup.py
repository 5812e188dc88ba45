"""Builds the native engine: one C++ source, once for each instruction set. Without a compiler the install goes on.

The engine is called by ctypes and knows nothing of Python, so neither its file nor the wheel is of one Python version.
"""

import glob
import os
import runpy
from operator import itemgetter

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS, VARIANTS = itemgetter("FLAGS", "VARIANTS")(runpy.run_path("fedasmu/engines/native/flags.py"))


class BuildVariants(build_ext):
    """Keeps the objects of the variants apart: they come from the same source."""

    def get_ext_filename(self, name: str) -> str:
        return os.path.join(*name.split(".")) + ".so"

    def build_extension(self, extension: Extension) -> None:
        shared, self.build_temp = self.build_temp, os.path.join(self.build_temp, extension.name)
        try:
            super().build_extension(extension)
        finally:
            self.build_temp = shared


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"build_ext": BuildVariants, "bdist_wheel": AnyPython},
    ext_modules=[
        Extension(
            f"fedasmu.engines.native._engine_{name}",
            ["fedasmu/engines/native/engine.cpp"],
            depends=glob.glob("fedasmu/engines/native/*.h"),
            extra_compile_args=FLAGS + flags,
            language="c++",
            optional=True,
        )
        for name, flags in VARIANTS.items()
    ],
)
