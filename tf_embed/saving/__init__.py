# SPDX-License-Identifier: Apache-2.0
"""Rows in Keras's files and weights, and progress of saves and loads."""
