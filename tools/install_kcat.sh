#!/bin/sh
# Install kcat for the interop tests when the machine allows it. Never fails: without kcat its tests are skipped, and say so.
if command -v kcat >/dev/null 2>&1; then
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "kcat is missing and there is no apt-get here: its tests will be skipped. Install kcat to run them."
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "kcat is missing and installing it needs root: its tests will be skipped. To run them: sudo apt-get install kcat"
    exit 0
fi
echo "installing kcat for the interop tests"
export DEBIAN_FRONTEND=noninteractive
if ! timeout 120 apt-get install -qq -y --no-install-recommends kcat >/dev/null 2>&1; then
    # A fresh container has no package lists yet.
    timeout 120 apt-get update -qq >/dev/null 2>&1
    timeout 120 apt-get install -qq -y --no-install-recommends kcat >/dev/null 2>&1 ||
        echo "kcat could not be installed (no network, or no such package): its tests will be skipped."
fi
exit 0
