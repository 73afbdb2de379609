#!/bin/sh
# Run the unit and integration tests on every other supported Python that is here, each in a .venv-<version> of its own.
set -u
cd "$(dirname "$0")/.."

main_version="$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo none)"
failed=""

# Version managers leave shims in PATH that refuse to run, so an interpreter counts only when it says its version.
find_version() {
    for candidate in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if [ "$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$1" ]; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

for version in 3.11 3.12 3.13 3.14; do
    if [ "$version" = "$main_version" ]; then
        continue
    fi
    if ! python="$(find_version "$version")"; then
        echo "== python $version: not installed here, skipped"
        continue
    fi
    echo "== python $version: $python"
    if PYTHON="$python" VENV=".venv-$version" tools/setup_venv.sh dev &&
        ".venv-$version/bin/python" -m pytest -q -n "${WORKERS:-auto}" --dist loadfile tests/unit tests/integration --deselect tests/unit/test_tidy.py; then
        echo "== python $version: passed"
    else
        failed="$failed $version"
    fi
done

if [ -n "$failed" ]; then
    echo "== failed on:$failed"
    exit 1
fi
