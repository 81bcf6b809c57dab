# SPDX-License-Identifier: Apache-2.0
"""Launches of a program as the processes of a cluster, with the standard library alone."""
