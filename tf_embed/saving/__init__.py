# SPDX-License-Identifier: Apache-2.0
"""Rows in checkpoints, Keras files and row files."""
