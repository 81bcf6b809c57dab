# SPDX-License-Identifier: Apache-2.0
"""`Variable` and its parts, lookups in it, and the anchor through which gradients reach it."""
