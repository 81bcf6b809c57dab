# SPDX-License-Identifier: Apache-2.0
"""The software bill of materials of a wheel, in CycloneDX.

Components of the scope "excluded" are the Python packages of an environment that the wheel runs in,
listed by cyclonedx-py. Components of the scope "required" are compiled into the wheel's libraries.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any


def defined(header: pathlib.Path, *names: str) -> str:
    """The numbers that a header defines for these names, joined by dots.

    Raises:
        ValueError: If the header does not define a name.
    """
    numbers = []
    for name in names:
        found = re.search(rf"^#define {name} +(\d+)\b", header.read_text(), re.MULTILINE)
        if found is None:
            raise ValueError(f"{header} must define {name} as a number.")
        numbers.append(found.group(1))
    return ".".join(numbers)


def compiled_in(answers: dict[str, str]) -> dict[str, str]:
    """The versions of the components that are compiled into the libraries.

    Args:
        answers: The variables that configure.sh has set, such as TF_EMBED_TENSORFLOW_DIR.
    """
    include = pathlib.Path(answers["TF_EMBED_TENSORFLOW_DIR"]) / "include"
    eigen, level = include / "Eigen" / "Version", ("MAJOR", "MINOR", "PATCH")
    if not eigen.exists():  # Eigen 3
        eigen, level = eigen.parent / "src/Core/util/Macros.h", ("WORLD", "MAJOR", "MINOR")
    found = {
        "abseil-cpp": defined(include / "absl/base/config.h", "ABSL_LTS_RELEASE_VERSION"),
        "eigen": defined(eigen, *(f"EIGEN_{name}_VERSION" for name in level)),
        "tensorflow": answers["TF_EMBED_TENSORFLOW_VERSION"],
    }
    if headers := answers.get("TF_EMBED_HIREDIS_HEADERS"):
        names = ("HIREDIS_MAJOR", "HIREDIS_MINOR", "HIREDIS_PATCH")
        found["hiredis"] = defined(pathlib.Path(headers) / "hiredis.h", *names)
    if cuda := answers.get("TF_EMBED_NVCC_VERSION"):
        found["cuda-runtime"] = cuda
    return found


def bill(
    environment: dict[str, Any], version: str, compiler: str, parts: dict[str, str]
) -> dict[str, Any]:
    """Completes the bill of an environment.

    Args:
        environment: The bill that cyclonedx-py made.
        version: The version of the wheel.
        compiler: The name and version of the C++ compiler.
        parts: The versions of the components that are compiled into its libraries.
    """
    wheel = {
        "type": "library",
        "bom-ref": "tf_embed",
        "name": "tf_embed",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "properties": [{"name": "tf_embed:compiler", "value": compiler}],
    }
    compiled = [
        {
            "type": "library",
            "bom-ref": f"compiled-in:{name}",
            "name": name,
            "version": part,
            "purl": f"pkg:generic/{name}@{part}",
            "scope": "required",
        }
        for name, part in parts.items()
    ]
    packages = [{**package, "scope": "excluded"} for package in environment["components"]]
    metadata = {**environment["metadata"], "component": wheel}
    return {**environment, "metadata": metadata, "components": compiled + packages}
