#!/bin/sh
# Make .venv and install the package into it: tools/setup_venv.sh [extra]. Called by the Makefile; needs python3 3.11+ alone.
#
# PYTHON names the interpreter to use; VENV the folder (default .venv). Outside this folder only pip's own cache is touched.
# The extra dev is installed with the versions and hashes of requirements-dev.txt; LOCK=no takes the newest versions instead.
set -eu
cd "$(dirname "$0")/.."

extra="${1:-}"
venv="${VENV:-.venv}"

say() { printf '%s\n' "penstock setup: $*" >&2; }

# An interpreter counts only when it runs: version managers leave shims in PATH that refuse.
good_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if good_python "$candidate"; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

if ! good_python "$venv/bin/python"; then
    if ! python="$(find_python)"; then
        say "no Python 3.11 or newer found (tried ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11})."
        say "Install one, or name it: make PYTHON=/path/to/python3.12 ..."
        exit 1
    fi
    if ! "$python" -c 'import venv, ensurepip' >/dev/null 2>&1; then
        version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
        say "$python cannot make virtual environments: its ensurepip module is missing."
        say "On Debian and Ubuntu it is the package python$version-venv: apt-get install python$version-venv"
        exit 1
    fi
    say "making $venv with $python"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi

say "installing penstock${extra:+[$extra]} into $venv"
log="$venv/setup.log"
# A line for every tenth package and for each large one: a fresh machine downloads for a minute or two. All of it is in the log.
show() {
    count=0
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        case $line in
            Collecting*)
                count=$((count + 1))
                [ $((count % 10)) -ne 0 ] || say "  $count packages so far"
                ;;
            *Downloading*MB*) say "  ${line#"${line%%[! ]*}"}" ;;
            *"Building wheel for "*": started") line=${line#*for } && say "  building ${line%% *}" ;;
            Installing*) say "  unpacking $count packages" ;;
        esac
    done
}
install() { "$venv/bin/python" -m pip install --progress-bar off --disable-pip-version-check "$@" 2>&1; }
# The lock was made for CPython 3.11 to 3.14.
locked() { [ "$extra" = dev ] && [ "${LOCK:-}" != no ] && "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info >= (3, 15))'; }
: >"$log"
rm -f "$log.failed"
{
    if locked; then
        install --require-hashes --requirement requirements-dev.txt && install --no-deps --editable .
    else
        install --editable ".${extra:+[$extra]}"
    fi || printf 'failed\n' >"$log.failed"
} | show
if [ -e "$log.failed" ]; then
    rm -f "$log.failed"
    tail -n 20 "$log" >&2
    say "pip failed; its output is in $log"
    ! locked || say "If requirements-dev.txt does not fit this machine, LOCK=no installs the newest versions instead."
    exit 1
fi

# An editable install is not compiled by pip, and where Python may not write bytecode every start would compile it anew.
"$venv/bin/python" -m compileall -q src
