# Helpers that the scripts of this tree share. Sourced, never run.
# shellcheck shell=bash

# The root of the tree, from the place of this file.
FERMATA_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Where the guests are kept once they are built.
FERMATA_GUESTS=${FERMATA_GUESTS:-$FERMATA_ROOT/.guests}
FERMATA_GUESTS=$(realpath -m "$FERMATA_GUESTS")
# Ordinary users of Debian do not have the system's programs on their path: depmod, mkfs.ext4, e2fsck.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export FERMATA_ROOT FERMATA_GUESTS PATH

# say TEXT...: one line about what happens now. On stderr, so that output for programs stays clean.
say() { printf '\033[2m==\033[0m %s\n' "$*" >&2; }

# die TEXT...: says what went wrong and what to do next, and ends the script.
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# as_root COMMAND...: runs it as root, by sudo if need be.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this needs root and there is no sudo; as root, run: $*"
    fi
}

# need PROGRAM...: ends the script when a program is missing.
need() {
    local program
    for program; do
        command -v "$program" >/dev/null || die "'$program' is missing: run scripts/setup"
    done
}

# scratch: makes a directory that goes away with the script, and puts its name in $scratch.
scratch() {
    mkdir -p "$FERMATA_GUESTS"
    # Beside the result, so that a finished file moves into place at once.
    scratch=$(mktemp -d "$FERMATA_GUESTS/.making.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

# digest_of FILE...: one hash over the names and contents of the files.
digest_of() { (cd "$FERMATA_ROOT" && sha256sum -- "$@") | sha256sum | cut -d' ' -f1; }

# fresh NAME DIGEST FILE...: true when NAME was made from these inputs and all its files are there.
fresh() {
    local stamp=$FERMATA_GUESTS/$1.stamp digest=$2 file
    shift 2
    [ "$(cat "$stamp" 2>/dev/null)" = "$digest" ] || return 1
    for file; do [ -e "$FERMATA_GUESTS/$file" ] || return 1; done
}

# made NAME DIGEST: notes that NAME is whole. Call it last.
made() { printf '%s\n' "$2" >"$FERMATA_GUESTS/$1.stamp"; }

# download PACKAGE...: fetches Debian packages into the current directory and installs nothing.
download() {
    # Outside of root's own directories apt warns that it does not drop its rights: that is no news here.
    apt-get -qq -o APT::Sandbox::User=root download "$@" && return
    # Lists that are some weeks old name versions that are gone.
    say "reading the package lists, for these are too old to download $*"
    as_root apt-get -qq update || die "apt-get update failed: check the network and the files in /etc/apt"
    apt-get -qq -o APT::Sandbox::User=root download "$@" ||
        die "apt cannot download $*: check the network, then run scripts/setup"
}

# find_cargo: puts cargo on the path, or says how to get it.
find_cargo() {
    local bin=${CARGO_HOME:-$HOME/.cargo}/bin
    command -v cargo >/dev/null && return
    [ -x "$bin/cargo" ] ||
        die "there is no cargo, neither on the path nor in $bin. Debian 12's own Rust is too old: install rustup (https://rustup.rs), then run this again"
    PATH=$bin:$PATH
}

# build_release: builds the fermata program and puts its name in $FERMATA_BIN.
build_release() {
    (cd "$FERMATA_ROOT" && cargo build --release --quiet) || die "the build failed: see the lines above"
    FERMATA_BIN=${CARGO_TARGET_DIR:-$FERMATA_ROOT/target}/release/fermata
    export FERMATA_BIN
}
