# SPDX-License-Identifier: Apache-2.0
"""The implementations that are measured, each with the same few verbs."""
