# SPDX-License-Identifier: Apache-2.0
"""The measurements: a module for each section. Its function `rows` measures a part of it.

Each part has its own process. There is no import here, so that the parent needs no TensorFlow.
"""

# For each section its parts, and the additional parts of the full run.
PARTS = {
    "core": (("1e7x64",), ("1e6x64", "1e6x16", "1e6x128")),
    "lookup": (("1e6x64", "1e7x64"), ("1e6x16", "1e6x128")),
    "mht": (("1e6x64",), ()),
    "adam": (("64", "16", "128"), ()),
    "optimizers": (("Adagrad", "SGD"), ()),
    "pooled": (("64",), ()),
    "fbgemm": (("Adagrad", "row-wise Adagrad"), ()),
    "growth": (("1e7x64",), ("1e7x16",)),
    "memory": (("upsert 16", "upsert 64", "Adam 16", "Adam 64"), ()),
    "concurrency": (("1e6x64",), ()),
    "latency": (("1e6x64",), ()),
    "small": (("256",), ()),
    "scaling": (("64",), ()),
    "policies": (
        ("restrict frequency 4e6x16", "bounded 1e6x64", "admission 1e7x16"),
        ("restrict timestamp 4e6x16",),
    ),
    "tiers": (
        ("steps 1e6x64", "ahead 1e6x64", "resident 1e6x64", "overwrites 16384x64"),
        ("steps 4e6x64", "resident 4e6x64", "overwrites 131072x64"),
    ),
    "tbe": (
        (
            *(
                f"{shape} {kind} {optimizer}"
                for shape in ("26x2048x1x64", "8x2048x20x128")
                for kind in ("arrays", "dynamic")
                for optimizer in ("SGD", "Adagrad", "row-wise Adagrad")
            ),
            "tables",
            "ids",
        ),
        (),
    ),
}

# Long sections, which are measured only on request.
ASKED_FOR = ("latency", "tbe")
