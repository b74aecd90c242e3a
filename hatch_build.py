"""Builds the compiled kernels into the wheel, where a compiler and the headers of Python and NumPy are at hand.

Rule: installing never fails for want of a compiler. Without one the wheel is pure Python and the kernels run in NumPy.
``LATECOMER_COMPILE=no`` leaves them out, ``LATECOMER_COMPILE=yes`` makes it an error when they cannot be built.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
SOURCE = ROOT / "latecomer" / "storage" / "native" / "module.c"
FOLDER = ROOT / "latecomer" / "storage"


def build(into: Path = FOLDER) -> Path:
    """Compile the kernels to a module in ``into``, and return its path; raises an exception where that fails."""
    import numpy
    from setuptools import Distribution, Extension

    with tempfile.TemporaryDirectory() as scratch:
        extension = Extension(
            "_compiled",
            [str(SOURCE)],
            include_dirs=[numpy.get_include()],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-g0", "-fno-strict-aliasing"],
        )
        distribution = Distribution({"name": "latecomer-kernels", "ext_modules": [extension]})
        command = distribution.get_command_obj("build_ext")
        command.build_lib = command.build_temp = scratch
        command.force = 1  # the headers count too
        command.ensure_finalized()
        command.run()
        name = f"_compiled{sysconfig.get_config_var('EXT_SUFFIX')}"
        # In one step, by another name first: processes may run what is there.
        built = shutil.copy2(Path(scratch) / name, into / f"{name}.new")
    return Path(built).replace(into / name)


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by hand, to build in place
    BuildHookInterface = object  # type: ignore[assignment,misc]


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the module to a wheel; an editable one gets it in place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        wanted = os.environ.get("LATECOMER_COMPILE", "")
        if self.target_name != "wheel" or wanted == "no":
            return
        try:
            built = build()
        except (Exception, SystemExit) as problem:  # whatever is missing, the package works without
            if wanted == "yes":
                raise
            self.app.display_warning(f"the compiled kernels are left out: {problem}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"latecomer/storage/{built.name}")


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
