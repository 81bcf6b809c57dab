# SPDX-License-Identifier: Apache-2.0
"""SavedModels that use only TensorFlow's ops, with the rows of tables in variables."""

from tf_embed.static_export.export import export_static

__all__ = ["export_static"]
