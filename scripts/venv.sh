#!/bin/sh
# Make .venv with Python 3.11 or newer; say in one sentence what to install where that is not possible.
# Usage: scripts/venv.sh PYTHON
set -eu
python="${1:-python3}"

fits() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# The name python3 may be an older one than those beside it.
if ! fits "$python"; then
    for other in python3.14 python3.13 python3.12 python3.11; do
        if fits "$other"; then
            python="$other"
            break
        fi
    done
fi
if ! fits "$python"; then
    found="$("$python" --version 2>/dev/null || echo "no $python")"
    echo "Latecomer needs Python 3.11 or newer and found $found: install one, or say make PYTHON=/path/to/python." >&2
    exit 1
fi

# Debian and its kin leave out the part of Python that puts pip into a venv.
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "Installing python$version-venv"
        apt-get update -qq >/dev/null
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "python$version-venv" >/dev/null
    else
        echo "$python cannot make virtual environments: install the package python$version-venv." >&2
        exit 1
    fi
fi

"$python" -m venv .venv
touch .venv/.python
