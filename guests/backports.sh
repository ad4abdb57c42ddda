# Debian 12's backports, for newer kernels and a newer QEMU than the release has. Sourced, never run.
# shellcheck shell=bash
# shellcheck source=guests/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The one release whose backports are used; its packages run on this host if this is its release.
backports=bookworm-backports

# find_backports: has apt, in this script and those that it calls, read the backports and nothing else. Lists and settings are
# in a directory of our own, so the host's stay as they are. False, with a line that says why, when there are none.
find_backports() {
    local directory=$FERMATA_GUESTS/apt mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null |
        sed -nE 's/^(URIs:|deb( \[[^]]*\])?) *(https?:\/\/[^ ]*\/debian)\/?( .*)?$/\3/p' | head -n 1)
    if [ -z "$mirror" ] || [ ! -r $keyring ]; then
        say "no backports: apt on this host names no Debian mirror, or the package debian-archive-keyring is missing"
        return 1
    fi
    mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$mirror" "$backports" "$keyring" >"$directory/only.sources"
    cat >"$directory/apt.conf" <<CONF
Dir::Etc::SourceList "$directory/only.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$directory/lists";
Dir::Cache "$directory/cache";
APT::Sandbox::User "root";
CONF
    export APT_CONFIG=$directory/apt.conf
    apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1 && return
    if ! apt-get -qq update || ! apt-cache show linux-image-cloud-amd64 >/dev/null 2>&1; then
        say "no backports: $mirror has no $backports, or cannot be reached"
        return 1
    fi
}
