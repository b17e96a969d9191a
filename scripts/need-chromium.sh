#!/bin/sh
# The report is opened in a real browser by the tests. Installs Debian's Chromium if there is none, and says so first.
set -eu
if command -v chromium >/dev/null 2>&1; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "make test needs Chromium on the PATH as 'chromium' (the report is opened in a real browser)." >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then sudo="sudo"; fi
echo "make test opens the report in a real browser and needs Chromium from the system's packages. About to run:"
echo "    $sudo apt-get update && $sudo apt-get install -y --no-install-recommends chromium fonts-dejavu-core"
$sudo apt-get update -qq
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core
