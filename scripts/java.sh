#!/bin/sh
# Spark runs on Java 17 or newer. Find it; install Debian's headless one where that is possible; else say what to install.
set -eu

# The major version of a java command, 0 where there is none: `openjdk version "17.0.15"` -> 17, "1.8.0_392" -> 1.
major() {
    text="$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)" || text=""
    echo "${text:-0}"
}

# Spark looks at JAVA_HOME first, then at the path; so does this.
if [ -n "${JAVA_HOME:-}" ]; then
    java="$JAVA_HOME/bin/java"
else
    java=java
fi
found="$(major "$java")"
if [ "$found" -ge 17 ]; then
    exit 0
fi

if [ -z "${JAVA_HOME:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing a headless Java (Spark needs 17 or newer)"
    # Java's packages link their manual pages into a folder that slim images lack.
    mkdir -p /usr/share/man/man1
    apt-get update -qq >/dev/null
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        if DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1; then
            break
        fi
    done
    found="$(major java)"
    if [ "$found" -ge 17 ]; then
        exit 0
    fi
fi

echo "Spark needs Java 17 or newer, which was not found: install it (Debian: openjdk-17-jre-headless) or point JAVA_HOME at one." >&2
exit 1
