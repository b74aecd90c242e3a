#!/bin/sh
# The tests look at the pages that Latecomer makes in a headless Chromium. Find it; install Debian's where that is possible; else
# say what to install.
set -eu

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing a headless Chromium (the tests open the pages that Latecomer makes)"
    apt-get update -qq >/dev/null || true
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null 2>&1 || true
    if command -v chromium >/dev/null 2>&1; then
        exit 0
    fi
fi

echo "The tests of web pages need Chromium, which was not found: install it (Debian: chromium) and run them again." >&2
exit 1
