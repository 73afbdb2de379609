#!/bin/sh
# Install the programs that the tests use, where the machine allows it.
# Never fails: the tests of a program that is missing are skipped, and say so.

# One line for each program: its command, and the Debian package that has it.
tools="
kcat     kcat
curl     curl
nc       netcat-openbsd
wrk      wrk
etcd     etcd-server
openssl  openssl
ip       iproute2
fusermount3  fuse3
chromium chromium
"

missing="$(echo "$tools" | while read -r command package; do
    [ -z "$command" ] || command -v "$command" >/dev/null 2>&1 || printf ' %s' "$package"
done)"
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
# The tests start their own etcd, on free ports. The package would start one as a service; this prevents it.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod 755 "$policy"
fi
# One at a time, because a system that lacks one package may still have the others.
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
