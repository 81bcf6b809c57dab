# SPDX-License-Identifier: Apache-2.0
"""The version of tf_embed; the one place where it is written."""

__version__ = "0.1.0"
