#!/bin/sh
# Install Latecomer with the named extra into .venv, at the pinned versions, and leave a stamp for make.
# Usage: scripts/install.sh EXTRA
set -eu
extra="$1"
echo "Installing latecomer[$extra] into .venv (once; about a minute)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$extra]"
touch ".venv/.$extra"
