//! The `#[kernel]` attribute of `cuda_std`; see `docs/KERNEL_ABI.md` for what it accepts and makes.
//!
//! [`parse`] reads the attribute and the function, [`checked`] rewrites host-side integer arithmetic so that it
//! cannot overflow unseen, and [`expand`] writes the device entry and the host-side launch struct.

mod checked;
mod expand;
mod parse;

use proc_macro::TokenStream;

/// Turns a function into a kernel: on the device its PTX entry, elsewhere a launch struct that implements
/// `cuda_std::Kernel`.
///
/// Keys: `block` (threads per block, a constant expression), `grid` (blocks: a `u32` or a tuple of two or
/// three; may use the arguments), and optionally `shared` (bytes of dynamic shared memory; may use the
/// arguments), `barriers`, `shuffles`, `votes`, `mmas` (most instructions of the kind in the PTX entry), `resident`
/// (blocks that a multiprocessor is to have registers for at once), `only` (the one target whose image has the kernel, as
/// `only = "sm_90a"`) and `requires(relation, ..)` (conditions on the arguments, checked before each launch).
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    parse::Kernel::parse(attribute.into(), item.into())
        .map(|kernel| expand::expand(&kernel))
        .unwrap_or_else(syn::Error::into_compile_error)
        .into()
}
