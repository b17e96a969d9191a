#!/bin/sh
# The tests open the report in a real browser and keep runs on a real PostgreSQL server. Installs Debian's packages of
# what is missing, and says so first.
set -eu
missing=""
if ! command -v chromium >/dev/null 2>&1; then missing="chromium fonts-dejavu-core"; fi
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null 2>&1; then
    missing="$missing postgresql"
fi
if [ -z "$missing" ]; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "make test needs Chromium on the PATH as 'chromium', and PostgreSQL's initdb; missing: $missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then sudo="sudo"; fi
echo "make test opens the report in a real browser and keeps runs on a real database. About to run:"
echo "    $sudo apt-get update && $sudo apt-get install -y --no-install-recommends $missing"
$sudo apt-get update -qq
# Debian would start a server of its own at once; the tests start theirs, in a folder of their own.
if [ -n "${missing##*postgresql*}" ] || [ -e /etc/postgresql-common/createcluster.conf ]; then :; else
    $sudo mkdir -p /etc/postgresql-common
    echo "create_main_cluster = false" | $sudo tee /etc/postgresql-common/createcluster.conf >/dev/null
fi
# shellcheck disable=SC2086 - a list of packages
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing
