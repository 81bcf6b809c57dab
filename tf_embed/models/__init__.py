# SPDX-License-Identifier: Apache-2.0
"""Keras models whose tables step together."""
