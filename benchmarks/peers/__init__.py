# SPDX-License-Identifier: Apache-2.0
"""The measured implementations, all with the same few verbs."""
