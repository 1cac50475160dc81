#!/usr/bin/env bash
# Prepares a machine to build Stepgraph: a C compiler, a compiler for the GPU kernels, the crates.
# Says what it does, changes nothing that is already there, and needs the network only for what is missing.
set -euo pipefail
cd "$(dirname "$0")"

say() { printf 'setup: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# Releases that cuda_builder accepts as kernel compilers, for example 1.96; the last one is the one to install.
read -ra tested < <(sed -n 's/^pub const TESTED: &\[&str\] = &\[\(.*\)\];$/\1/p' cuda_builder/src/compiler.rs | tr -d '"' | tr ',' ' ')
if [ ${#tested[@]} = 0 ]; then
    say "cuda_builder/src/compiler.rs does not say which compilers were tested" >&2
    exit 1
fi
newest=${tested[-1]}

is_tested() {
    local release
    for release in "${tested[@]}"; do
        if [[ "$1" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ && "$release" == "${1%.*}" ]]; then return 0; fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif have sudo; then sudo "$@"; else return 1; fi
}

updated=no
# Installs Debian packages; fails, without having removed anything, where that is not possible.
install_packages() {
    have apt-get || return 1
    say "installing with apt-get: $*"
    if [ $updated = no ]; then
        as_root apt-get update -qq || return 1
        updated=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends --no-remove "$@"
}

# --- Rust for the host crates ---------------------------------------------------------------------------------------
if ! have cargo && [ -x "$HOME/.cargo/bin/cargo" ]; then
    export PATH="$HOME/.cargo/bin:$PATH"
fi
if ! have cargo && ! install_packages cargo-web rustc-web rust-web-src; then
    say "no Rust toolchain was found. Install one from https://rustup.rs, then run this again." >&2
    exit 1
fi
say "host compiler: $(rustc --version), $(cargo --version)"

# --- C compiler: zstd's sources, and the stand-in for libcuda -------------------------------------------------------
if ! have cc && ! install_packages gcc libc6-dev; then
    say "no C compiler (cc) was found. Install gcc or clang, then run this again." >&2
    exit 1
fi

# --- Kernel compiler ------------------------------------------------------------------------------------------------
# Whether $1 is a rustc of a tested release that has the source of the standard library; the search of cuda_builder.
is_kernel_compiler() {
    local release sysroot
    release=$("$1" --version 2>/dev/null | sed -n 's/^rustc \([0-9.]*\) .*/\1/p') || return 1
    is_tested "$release" || return 1
    sysroot=$("$1" --print sysroot) || return 1
    [ -f "$sysroot/lib/rustlib/src/rust/library/core/src/lib.rs" ]
}

find_kernel_compiler() {
    local rustc
    for rustc in "${STEPGRAPH_NVPTX_RUSTC:-}" "$(rustc --print sysroot)/bin/rustc" \
        "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/[0-9]*/bin/rustc /usr/bin/rustc; do
        if [ -x "$rustc" ] && is_kernel_compiler "$rustc"; then
            printf '%s\n' "$rustc"
            return 0
        fi
    done
    return 1
}

# Whether the distribution offers rustc-web of a tested release.
is_packaged() {
    have apt-cache || return 1
    is_tested "$(apt-cache policy rustc-web 2>/dev/null | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')"
}

if ! kernel_rustc=$(find_kernel_compiler); then
    say "no kernel compiler yet (rustc $newest with rust-src)"
    # The package lists of a fresh container are empty.
    if have apt-get && ! is_packaged && as_root apt-get update -qq; then updated=yes; fi
    if is_packaged; then install_packages rustc-web rust-web-src || true; fi
    if ! find_kernel_compiler >/dev/null && have rustup; then
        say "installing with rustup: toolchain $newest.0 with rust-src"
        rustup toolchain install "$newest.0" --profile minimal --component rust-src || true
    fi
    if kernel_rustc=$(find_kernel_compiler); then
        # Cargo does not see that a compiler has appeared.
        touch build.rs
    fi
fi
if [ -n "$kernel_rustc" ]; then
    say "kernel compiler: $("$kernel_rustc" --version), $kernel_rustc"
else
    say "WARNING: no compiler for the GPU kernels: the program will build, and train on the CPU only."
    say "  Install one of these, then run this again:"
    say "  - Debian: apt-get install rustc-web rust-web-src   (release $newest, from the security suite)"
    say "  - rustup: rustup toolchain install $newest.0 --profile minimal --component rust-src"
    say "  - any other rustc $newest with the source of its standard library: STEPGRAPH_NVPTX_RUSTC=/path/to/rustc"
fi

# --- Crates ---------------------------------------------------------------------------------------------------------
# Without the network first: it is all there on the second run.
fetch() {
    cargo fetch --locked --quiet --offline "$@" 2>/dev/null || {
        say "fetching crates"
        cargo fetch --locked --quiet "$@"
    }
}
host=$(rustc --version --verbose | sed -n 's/^host: //p')
fetch --target "$host"
if [ -n "$kernel_rustc" ]; then
    # Building core for the device resolves the standard library's own dependencies.
    RUSTC=$kernel_rustc RUSTC_BOOTSTRAP=1 fetch --target nvptx64-nvidia-cuda -Zbuild-std=core
fi

# --- Optional -------------------------------------------------------------------------------------------------------
if ! have ptxas && [ ! -x "${CUDA_HOME:-/usr/local/cuda}/bin/ptxas" ] && [ -z "${STEPGRAPH_PTXAS:-}" ]; then
    say "optional: with ptxas (a CUDA toolkit, or: pip install nvidia-cuda-nvcc) the build also makes machine code for"
    say "  the GPU and reports registers and spills; without it the driver assembles the kernels at the first start"
fi
say "ready"
