#!/bin/sh
# The paths of the test, the library and the driver.
exec python3 "$@"
