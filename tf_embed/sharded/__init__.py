# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are in several processes: the workers of a strategy, or parameter servers."""
