# SPDX-License-Identifier: Apache-2.0
"""A look into saved tables: `python -m tf_embed.inspect PATH`."""
