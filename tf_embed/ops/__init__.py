# SPDX-License-Identifier: Apache-2.0
"""Raw ops with checked arguments and gradients: the Python interface of the op library."""
