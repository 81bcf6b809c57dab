# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/, drawn by code. `make pictures` writes them to docs/images/."""
