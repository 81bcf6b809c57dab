# SPDX-License-Identifier: Apache-2.0
"""The version of tf_embed, which is written only here."""

__version__ = "0.1.0"
