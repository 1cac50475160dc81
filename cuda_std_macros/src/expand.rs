//! Writes the device entry, and off the device the launch struct with its `cuda_std::Kernel` implementation.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Expr, Ident};

use crate::checked::checked;
use crate::parse::{Argument, ArgumentKind, Kernel, Relation};

/// The whole expansion of one kernel.
pub fn expand(kernel: &Kernel) -> TokenStream {
    let device = device_entry(kernel);
    let launch = launch_struct(kernel);
    let implementation = implementation(kernel);
    // A target is one of its own features.
    let only = kernel.only.as_ref().map(|only| quote!(target_feature = #only));
    quote! {
        #[cfg(all(target_arch = "nvptx64", #only))]
        #device

        #[cfg(not(target_arch = "nvptx64"))]
        #launch

        #[cfg(not(target_arch = "nvptx64"))]
        #implementation
    }
}

/// `bias_lrelu` becomes `BiasLrelu`; a digit-led word stays attached to the one before.
fn struct_name(name: &Ident) -> Ident {
    let mut camel = String::new();
    for word in name.to_string().trim_start_matches("r#").split('_') {
        let mut letters = word.chars();
        camel.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    Ident::new(&camel, name.span())
}

/// The PTX entry: one parameter per argument, buffers as addresses.
///
/// A read-only buffer arrives as `&'static [T; 0]`: the reference makes LLVM's parameter `noalias readonly`, from
/// which the back end takes the non-coherent load (`ld.global.nc`); the zero length promises nothing about the
/// bytes behind it. Written buffers are raw pointers, because other threads write them between barriers.
fn device_entry(kernel: &Kernel) -> TokenStream {
    let Kernel { name, visibility, docs, attributes, body, .. } = kernel;
    let parameters = kernel.arguments.iter().map(|argument| {
        let Argument { name, ty, .. } = argument;
        let mutable = mutability(argument);
        match &argument.kind {
            ArgumentKind::Scalar(_) => quote!(#mutable #name: #ty),
            ArgumentKind::Buffer { access, element, .. } if access == "In" => {
                quote!(#name: &'static [#element; 0])
            }
            ArgumentKind::Buffer { element, .. } => quote!(#name: *mut #element),
        }
    });
    let buffers = kernel.arguments.iter().filter_map(|argument| {
        let Argument { name, ty, .. } = argument;
        let mutable = mutability(argument);
        match &argument.kind {
            ArgumentKind::Scalar(_) => None,
            ArgumentKind::Buffer { .. } => Some(quote!(let #mutable #name = <#ty>::from_parameter(#name);)),
        }
    });
    quote! {
        #(#docs)*
        #(#attributes)*
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, clippy::missing_safety_doc, improper_ctypes_definitions)]
        #visibility unsafe extern "ptx-kernel" fn #name(#(#parameters),*) {
            #(#buffers)*
            #(#body)*
        }
    }
}

fn launch_struct(kernel: &Kernel) -> TokenStream {
    let Kernel { name, visibility, docs, .. } = kernel;
    let launch = struct_name(name);
    let summary = format!("Launch of the kernel `{name}`: its arguments in order.");
    let docs = if docs.is_empty() { quote!(#[doc = #summary]) } else { quote!(#(#docs)*) };
    let fields = kernel.arguments.iter().map(|Argument { name, docs, ty, .. }| {
        let text = format!("Kernel argument `{name}`.");
        let docs = if docs.is_empty() { quote!(#[doc = #text]) } else { quote!(#(#docs)*) };
        quote!(#docs pub #name: #ty)
    });
    quote! {
        #docs
        #[derive(Clone, Copy, Debug)]
        #visibility struct #launch { #(#fields),* }
    }
}

fn implementation(kernel: &Kernel) -> TokenStream {
    let Kernel { name, attributes, body, .. } = kernel;
    let launch = struct_name(name);
    let text = name.to_string();
    let block = &kernel.block;
    let limit = |limit: &Option<Expr>| limit.as_ref().map_or(quote!(0), ToTokens::to_token_stream);
    let (barriers, shuffles) = (limit(&kernel.limits.barriers), limit(&kernel.limits.shuffles));
    let (votes, mmas) = (limit(&kernel.limits.votes), limit(&kernel.limits.mmas));
    let resident = limit(&kernel.resident);
    let only = kernel
        .only
        .as_ref()
        .map_or(quote!(::core::option::Option::None), |only| quote!(::core::option::Option::Some(#only)));
    let parameters = kernel.arguments.iter().map(parameter_declaration);
    let bindings = bindings(kernel);

    let grid = checked(&kernel.grid);
    let grid = quote_spanned!(expression_span(&kernel.grid)=> ::cuda_std::contract::grid(#grid));
    let shared = kernel.shared.as_ref().map_or(quote!(0u32), |shared| {
        let shared = checked(shared);
        quote_spanned!(expression_span(&kernel.shared)=> ::cuda_std::contract::shared_bytes(#shared)?)
    });

    let relations = kernel.requires.iter().map(|Relation { expression, text }| {
        let condition = checked(expression);
        quote! {
            __report.relation(
                ::core::stringify!(#text),
                (|| -> ::core::option::Option<bool> { ::core::option::Option::Some(#condition) })(),
            )?;
        }
    });
    let values = kernel.arguments.iter().map(|Argument { name, kind, .. }| {
        let text = name.to_string();
        match kind {
            ArgumentKind::Scalar(_) => quote!((#text, ::cuda_std::ArgumentValue::from(self.#name))),
            ArgumentKind::Buffer { .. } => quote!((#text, self.#name.value())),
        }
    });
    let accesses = buffers(kernel).map(|name| {
        let text = name.to_string();
        quote!(self.#name.access(#text))
    });
    let words = kernel.arguments.iter().map(|Argument { name, kind, .. }| match kind {
        ArgumentKind::Scalar(_) => quote!(out.push(self.#name);),
        ArgumentKind::Buffer { .. } => quote!(out.push(self.#name.addr());),
    });
    let inputs = kernel.arguments.iter().map(|argument| {
        let Argument { name, ty, .. } = argument;
        let mutable = mutability(argument);
        quote!(#mutable #name: #ty)
    });
    let passed = kernel.arguments.iter().map(|Argument { name, kind, .. }| {
        let text = name.to_string();
        match kind {
            ArgumentKind::Scalar(_) => quote!(self.#name),
            ArgumentKind::Buffer { .. } => quote!(self.#name.named(#text)),
        }
    });

    quote! {
        impl ::cuda_std::Kernel for #launch {
            const DECL: ::cuda_std::KernelDecl = ::cuda_std::KernelDecl {
                name: #text,
                block: #block,
                barriers: #barriers,
                shuffles: #shuffles,
                votes: #votes,
                mmas: #mmas,
                resident: #resident,
                only: #only,
                params: &[#(#parameters),*],
                file: ::core::file!(),
                line: ::core::line!(),
            }
            .validated();

            #[allow(unused_variables, unused_parens, clippy::all)]
            fn grid(&self) -> ::cuda_std::Dim3 {
                #bindings
                (|| -> ::core::option::Option<::cuda_std::Dim3> { #grid })().unwrap_or(::cuda_std::Dim3::OVERFLOW)
            }

            #[allow(unused_variables, unused_parens, clippy::all)]
            fn shared_bytes(&self) -> u32 {
                #bindings
                (|| -> ::core::option::Option<u32> { ::core::option::Option::Some(#shared) })().unwrap_or(u32::MAX)
            }

            #[allow(unused_variables, unused_parens, clippy::all)]
            fn check(&self) -> ::core::result::Result<(), ::cuda_std::ContractError> {
                #bindings
                let __values = || ::std::vec![#(#values),*];
                let __report = ::cuda_std::contract::Report::new(&Self::DECL, &__values);
                #(#relations)*
                __report.launch(self)
            }

            fn accesses(&self) -> ::std::vec::Vec<::cuda_std::Access> {
                ::std::vec![#(#accesses),*]
            }

            fn params(&self, out: &mut ::cuda_std::ParamWords) {
                out.clear();
                #(#words)*
            }

            fn thread(&self) {
                #(#attributes)*
                #[allow(clippy::too_many_arguments)]
                #[inline(always)]
                fn body(#(#inputs),*) {
                    #(#body)*
                }
                body(#(#passed),*)
            }
        }
    }
}

/// `let rows = self.rows;` for the host-side expressions.
fn bindings(kernel: &Kernel) -> TokenStream {
    let names = kernel.arguments.iter().map(|argument| &argument.name);
    quote!(#(let #names = self.#names;)*)
}

fn buffers(kernel: &Kernel) -> impl Iterator<Item = &Ident> {
    kernel.arguments.iter().filter(|a| matches!(a.kind, ArgumentKind::Buffer { .. })).map(|a| &a.name)
}

fn mutability(argument: &Argument) -> Option<TokenStream> {
    argument.mutable.then(|| quote!(mut))
}

/// `cuda_std::Param` of one argument, for `DECL`.
fn parameter_declaration(Argument { name, kind, .. }: &Argument) -> TokenStream {
    let text = name.to_string();
    let ty = match kind {
        ArgumentKind::Scalar(scalar) => {
            let variant = element_variant(scalar);
            quote!(::cuda_std::ParamType::Scalar(::cuda_std::ElementType::#variant))
        }
        ArgumentKind::Buffer { access, element } => {
            let access = match access.to_string().as_str() {
                "In" => format_ident!("Read"),
                "Out" => format_ident!("Write"),
                _ => format_ident!("ReadWrite"),
            };
            let variant = element_variant(element);
            quote!(::cuda_std::ParamType::Buffer(::cuda_std::AccessKind::#access, ::cuda_std::ElementType::#variant))
        }
    };
    quote!(::cuda_std::Param { name: #text, ty: #ty })
}

/// `f32` names the variant `F32`.
fn element_variant(ty: &Ident) -> Ident {
    Ident::new(&ty.to_string().to_ascii_uppercase(), Span::call_site())
}

/// Where a type mismatch of a whole expression is shown.
fn expression_span(expression: &impl syn::spanned::Spanned) -> Span {
    expression.span()
}
