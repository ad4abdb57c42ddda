# What the guest builders share. Sourced, never run.
# shellcheck shell=bash
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# compile_programs DIRECTORY: builds guests/src/*.c there as static programs, which run in any guest.
compile_programs() {
    local source
    mkdir -p "$1"
    for source in "$FERMATA_ROOT"/guests/src/*.c; do
        gcc -static -O2 -Wall -Wextra -Werror -s -o "$1/$(basename "$source" .c)" "$source"
    done
}

# The release that guests are made of.
# shellcheck disable=SC2034 # used by who sources this
suite=bookworm

# package_sources: writes what mmdebstrap needs into the current directory: apt.sources, the package sources of this host, with source
# packages, in the format that they have; and apt.conf.
package_sources() {
    local file=${FERMATA_GUEST_SOURCES:-/etc/apt/sources.list.d/debian.sources}
    [ -r "$file" ] || file=/etc/apt/sources.list
    grep -q "$suite" "$file" ||
        die "$file does not name Debian $suite: set FERMATA_GUEST_SOURCES to an apt sources file that does"
    sed -E -e 's/^Types:.*/Types: deb deb-src/' -e '/^deb /{p;s/^deb /deb-src /}' "$file" >apt.sources
    # How this host reaches its mirror (proxies, checks of dates), as the guest has to while it is made.
    apt-config dump | grep -E '^Acquire::(Check-|http|https|ForceIPv|Retries)' >apt.conf || true
}

# modules_into ROOT: copies the drivers into an initramfs, with the list that says their order.
modules_into() {
    local module
    while read -r module; do
        install -D -m 644 "$FERMATA_GUESTS/modules/$module" "$1/$module"
    done <"$FERMATA_GUESTS/modules/order"
    cp "$FERMATA_GUESTS/modules/order" "$1/lib/modules/order"
}

# pack_initramfs ROOT FILE: the same tree always gives the same bytes. Not compressed: an emulated processor unpacks longer than this one reads.
pack_initramfs() {
    (cd "$1" && find . -exec touch -hd @0 {} + && find . -print0 | LC_ALL=C sort -z |
        cpio --quiet --null -o -H newc -R 0:0 --reproducible) >"$2"
}
