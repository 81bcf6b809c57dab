# SPDX-License-Identifier: Apache-2.0
"""Keys and rows between the workers of a strategy, by TensorFlow's collectives."""
