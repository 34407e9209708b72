#!/usr/bin/env bash
# Puts prometheus, promtool, alertmanager and amtool into .tools/bin, as symbolic links.
#
# Programs in PATH are taken if they are new enough; else Debian's or Ubuntu's packages are fetched with apt and
# unpacked into .tools/. Nothing is installed, no service is started, and root is not needed.
# The system's package lists are used if they will do, else lists are fetched into a state of our own.
# Exit codes: 0 all four are there; 2 they cannot be had, with one line that says what to do.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.tools
bin=$tools/bin
ready=$tools/.ready
programs=(prometheus promtool alertmanager amtool)
packages=(prometheus prometheus-alertmanager)
if [[ ${1:-} == --with-blackbox ]]; then # for the bench, which compares with it
    programs+=(blackbox_exporter)
    packages+=(prometheus-blackbox-exporter)
fi

fail() {
    echo "get_prometheus.sh: $1; install Prometheus >= 2.42 and Alertmanager >= 0.25, or put prometheus, promtool, alertmanager and amtool in PATH" >&2
    exit 2
}

# The least version of a program: the oldest of each that the rules and the example configurations were run on.
least() {
    case $1 in
        prometheus | promtool) echo 2.42.0 ;;
        blackbox_exporter) echo 0.19.0 ;;
        *) echo 0.25.0 ;;
    esac
}

# The version a program says it has: "prometheus, version 2.42.0+ds (branch: ...". Empty if it cannot run.
version() {
    local said
    said=$("$1" --version 2>&1) || return 0
    sed -nE '1s/^.* version v?([0-9]+(\.[0-9]+)+).*$/\1/p' <<<"$said"
}

new_enough() { # path, program
    local has wanted
    has=$(version "$1")
    wanted=$(least "$2")
    [[ -n $has && $(printf '%s\n' "$wanted" "$has" | sort -V | head -n 1) == "$wanted" ]]
}

all_there() {
    local program
    for program in "${programs[@]}"; do
        new_enough "$bin/$program" "$program" || return 1
    done
}

finish() {
    local program
    for program in "${programs[@]}"; do
        echo "$program $(version "$bin/$program")"
    done >"$ready.new"
    mv "$ready.new" "$ready"
    exit 0
}

# Debian calls alertmanager prometheus-alertmanager.
in_path() {
    local name found
    for name in "$1" "prometheus-${1//_/-}"; do
        found=$(type -P "$name") || continue
        [[ $found == "$bin"/* ]] && continue
        new_enough "$found" "$1" && realpath "$found" && return 0
    done
    return 1
}

from_path() {
    local program found links=()
    for program in "${programs[@]}"; do
        found=$(in_path "$program") || return 1
        links+=("$program" "$found")
    done
    set -- "${links[@]}"
    while (($#)); do
        ln -sfn "$2" "$bin/$1"
        shift 2
    done
}

# Downloads the packages into the folder $1; further arguments are options for apt-get.
download() {
    local folder=$1
    shift
    # Root's downloads are otherwise handed to the user _apt, which may not enter the folder.
    (cd "$folder" && apt-get "$@" -o APT::Sandbox::User=root download "${packages[@]}") >>"$log" 2>&1
}

# Lists of our own, from the system's sources: for when the system has none, or they are out of date.
download_with_own_lists() {
    local folder=$1 state=$work/apt
    mkdir -p "$state/state/lists/partial" "$state/cache/archives/partial"
    # Read after the system's configuration, so that its hooks (which clean the system's cache, or feed a
    # software centre) are not run. Its proxies and certificates stay.
    cat >"$state/apt.conf" <<CONF
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State "$state/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$state/cache";
Acquire::Languages "none";
Acquire::Retries "3";
APT::Sandbox::User "root";
CONF
    # A source of the machine's owner that does not answer is none of our business; the download tells.
    apt-get -c "$state/apt.conf" update >>"$log" 2>&1 || true
    download "$folder" -c "$state/apt.conf"
}

# Why apt failed, in its own words: the first address it could not reach, else its last error.
why() {
    grep -m 1 -E '^[EW]: Failed to fetch' "$log" || grep -E '^E:' "$log" | tail -n 1 || echo "it says nothing"
}

from_packages() {
    type -P apt-get >/dev/null && type -P dpkg-deb >/dev/null ||
        fail "Prometheus's programs are not in PATH (or too old), and this is neither Debian nor Ubuntu"
    work=$(mktemp -d "$tools/work.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    log=$work/log
    mkdir "$work/packages" "$work/unpacked"
    echo "get_prometheus.sh: unpacking the distribution's packages into .tools/ (nothing is installed)"
    if ! download "$work/packages" && ! download_with_own_lists "$work/packages"; then
        fail "apt-get cannot download ${packages[*]} ($(why))"
    fi
    local package
    for package in "$work/packages"/*.deb; do
        dpkg-deb -x "$package" "$work/unpacked"
    done
    rm -rf "$tools/unpacked"
    mv "$work/unpacked" "$tools/unpacked"
    for package in prometheus promtool amtool; do
        ln -sfn "../unpacked/usr/bin/$package" "$bin/$package"
    done
    if [[ -e $tools/unpacked/usr/bin/prometheus-blackbox-exporter ]]; then
        ln -sfn ../unpacked/usr/bin/prometheus-blackbox-exporter "$bin/blackbox_exporter"
    fi
    relocate_alertmanager
}

# Debian's alertmanager reads its notification template from the place where its package installs it, and cannot be
# told otherwise. The path in the unpacked program is made relative (as long as before), and it is started from there.
relocate_alertmanager() {
    local there=/usr/share/prometheus/alertmanager here=usr/share/prometheus/alertmanager/
    LC_ALL=C sed "s#$there#$here#g" "$tools/unpacked/usr/bin/prometheus-alertmanager" >"$tools/unpacked/alertmanager"
    chmod +x "$tools/unpacked/alertmanager"
    rm -f "$bin/alertmanager"
    cat >"$bin/alertmanager" <<'WRAPPER'
#!/usr/bin/env bash
# Starts the unpacked alertmanager from its own folder; file names stay relative to where the caller is.
arguments=()
for argument in "$@"; do
    case $argument in
        --config.file=[!/]* | --storage.path=[!/]* | --web.config.file=[!/]*)
            argument=${argument%%=*}=$PWD/${argument#*=}
            ;;
    esac
    arguments+=("$argument")
done
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../unpacked" && exec ./alertmanager "${arguments[@]}"
WRAPPER
    chmod +x "$bin/alertmanager"
}

mkdir -p "$bin" 2>/dev/null || fail "$tools cannot be written"
exec 9>"$tools/.lock"
flock 9 # two makes at once must not unpack over each other
all_there && finish
from_path && all_there && finish
from_packages
all_there && finish
fail "the distribution's packages are too old or do not run here ($(for p in "${programs[@]}"; do echo -n "$p: $(version "$bin/$p") "; done))"
