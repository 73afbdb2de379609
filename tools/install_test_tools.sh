#!/bin/sh
# Install the programs that tests drive the broker with, where the machine allows it: kcat, curl, nc.
# Never fails: without one of them its tests are skipped, and say so.
missing=""
for pair in kcat:kcat curl:curl nc:netcat-openbsd; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair##*:}"
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing:$missing, and there is no apt-get here: their tests will be skipped. Install them to run those too."
    exit 0
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "missing:$missing, and installing needs root: their tests will be skipped. To run them: sudo apt-get install$missing"
    exit 0
fi
echo "installing$missing for the tests"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # a list of words
if ! timeout 120 apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1; then
    # A fresh container has no package lists yet.
    timeout 120 apt-get update -qq >/dev/null 2>&1
    timeout 120 apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1 ||
        echo "$missing could not be installed (no network, or no such package): their tests will be skipped."
fi
exit 0
