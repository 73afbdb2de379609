#!/bin/sh
# Install the programs that tests drive the broker with, where the machine allows it: kcat, curl, nc; and for clusters etcd, openssl to make
# certificates, and ip to cut a network.
# Never fails: without one of them its tests are skipped, and say so.
missing=""
for pair in kcat:kcat curl:curl nc:netcat-openbsd etcd:etcd-server openssl:openssl ip:iproute2; do
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
# Tests start their own etcd, on ports that are free. The package would start one as a service: this is Debian's way to say no.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
fi
# Each by itself: a system that lacks one has the others all the same.
install() {
    for package in $missing; do
        timeout 120 apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1 || return 1
    done
}
if ! install; then
    # A fresh container has no package lists yet.
    timeout 120 apt-get update -qq >/dev/null 2>&1
    for package in $missing; do
        timeout 120 apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1 ||
            echo "$package could not be installed (no network, or no such package): its tests will be skipped."
    done
fi
exit 0
