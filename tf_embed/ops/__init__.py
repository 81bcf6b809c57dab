# SPDX-License-Identifier: Apache-2.0
"""Raw ops with checked arguments and gradients: what the op library offers, in Python."""
