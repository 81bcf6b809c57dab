# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials of a wheel, in CycloneDX 1.5.

Components of the scope "required" are in the wheel: as headers that are compiled into its
libraries, or as static libraries. Those of the scope "excluded" come with other packages at run
time.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from typing import Any

# Name of the file in tf_embed-*.dist-info/sboms/.
FILE = "tf_embed.cdx.json"


def defined(header: pathlib.Path, *names: str) -> str:
    """The numbers that a header defines for these names, joined by points.

    Raises:
        ValueError: If the header lacks one.
    """
    text = header.read_text()
    numbers = []
    for name in names:
        found = re.search(rf"^#define {name} +(\d+)\b", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{header} must define {name} as a number.")
        numbers.append(found.group(1))
    return ".".join(numbers)


def compiler_version(compiler: str) -> str:
    """The first line of what the compiler says of its version."""
    command = [compiler, "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.partition("\n")[0]


def _eigen_version(folder: pathlib.Path) -> str:
    of_eigen_5 = folder / "Version"
    if of_eigen_5.exists():
        names = ("EIGEN_MAJOR_VERSION", "EIGEN_MINOR_VERSION", "EIGEN_PATCH_VERSION")
        return defined(of_eigen_5, *names)
    names = ("EIGEN_WORLD_VERSION", "EIGEN_MAJOR_VERSION", "EIGEN_MINOR_VERSION")
    return defined(folder / "src" / "Core" / "util" / "Macros.h", *names)


def bill(
    *,
    version: str,
    tensorflow: str,
    include: pathlib.Path,
    compiler: str,
    requirements: list[str],
    hiredis: pathlib.Path | None,
    cuda: str | None,
) -> dict[str, Any]:
    """The bill of materials.

    Args:
        version: The version of the wheel.
        tensorflow: The version of TensorFlow that the wheel is for.
        include: The folder of TensorFlow's headers.
        compiler: What the C++ compiler says of its version.
        requirements: The Python packages that the wheel requires, each with its bounds.
        hiredis: The folder of hiredis's headers, or None for a wheel without Redis.
        cuda: The version of CUDA, or None for a wheel without GPU support.
    """
    abseil = defined(include / "absl" / "base" / "config.h", "ABSL_LTS_RELEASE_VERSION")
    parts = [
        _part("abseil-cpp", abseil, "headers"),
        _part("eigen", _eigen_version(include / "Eigen"), "headers"),
        _part("tensorflow", tensorflow, "headers"),
    ]
    if hiredis is not None:
        names = ("HIREDIS_MAJOR", "HIREDIS_MINOR", "HIREDIS_PATCH")
        parts.append(_part("hiredis", defined(hiredis / "hiredis.h", *names), "static library"))
    if cuda is not None:
        parts.append(_part("cuda-runtime", cuda, "static library and headers"))
    parts.append(_part("tensorflow", tensorflow, "shared library", scope="excluded"))
    for requirement in requirements:
        name, bounds = re.fullmatch(r"([\w.-]+)\s*(.*)", requirement).groups()  # type: ignore
        parts.append(_part(name, None, f"Python package {bounds}".strip(), scope="excluded"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": "tf_embed",
                "name": "tf_embed",
                "version": version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "tf_embed:compiler", "value": compiler}],
            },
        },
        "components": parts,
    }


def _part(name: str, version: str | None, form: str, scope: str = "required") -> dict[str, Any]:
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"{name}:{form}".replace(" ", "-"),
        "name": name,
        "scope": scope,
        "properties": [{"name": "tf_embed:form", "value": form}],
    }
    return part if version is None else part | {"version": version}
