#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The paths of the test, the library and the driver.
exec python3 "$@"
