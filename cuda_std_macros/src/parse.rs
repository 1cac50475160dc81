//! Reads `#[kernel(..)]` and the function under it, and says what is wrong where it is wrong.

use proc_macro2::{Span, TokenStream};
use syn::parse::{ParseStream, Parser};
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, Ident, ItemFn, LitStr, Pat, PathArguments, Result,
    ReturnType, Stmt, Token, Type, Visibility,
};

/// Scalar argument types.
const SCALARS: [&str; 6] = ["u32", "i32", "u64", "i64", "f32", "f64"];
/// Buffer element types.
const ELEMENTS: [&str; 7] = ["f32", "f64", "u32", "i32", "u64", "u16", "u8"];
/// Buffer argument types.
const BUFFERS: [&str; 3] = ["In", "Out", "InOut"];

/// A kernel as written.
pub struct Kernel {
    pub name: Ident,
    pub visibility: Visibility,
    /// Doc comments, which go to the launch struct.
    pub docs: Vec<Attribute>,
    /// Other attributes (lint levels and the like), which go to the body.
    pub attributes: Vec<Attribute>,
    pub arguments: Vec<Argument>,
    pub body: Vec<Stmt>,
    pub block: Expr,
    pub grid: Expr,
    pub shared: Option<Expr>,
    pub limits: Limits,
    /// The one target whose image has the kernel; absent means all.
    /// Blocks that a multiprocessor is to have room for.
    pub resident: Option<Expr>,
    pub only: Option<LitStr>,
    pub requires: Vec<Relation>,
}

/// One argument: name, type and what kind of PTX parameter it is.
pub struct Argument {
    pub name: Ident,
    pub mutable: bool,
    pub docs: Vec<Attribute>,
    pub ty: Type,
    pub kind: ArgumentKind,
}

pub enum ArgumentKind {
    /// Passed by value; the type.
    Scalar(Ident),
    /// Passed as an address; `In`, `Out` or `InOut`, and the element type.
    Buffer { access: Ident, element: Ident },
}

/// Most instructions of each kind in the PTX entry; absent means none.
#[derive(Default)]
pub struct Limits {
    pub barriers: Option<Expr>,
    pub shuffles: Option<Expr>,
    pub votes: Option<Expr>,
    pub mmas: Option<Expr>,
}

/// One condition of `requires`, with its tokens as written for the error message.
pub struct Relation {
    pub expression: Expr,
    pub text: TokenStream,
}

/// The attribute's keys.
#[derive(Default)]
struct Keys {
    block: Option<Expr>,
    grid: Option<Expr>,
    shared: Option<Expr>,
    limits: Limits,
    resident: Option<Expr>,
    only: Option<LitStr>,
    requires: Option<Vec<Relation>>,
}

impl Kernel {
    pub fn parse(attribute: TokenStream, item: TokenStream) -> Result<Kernel> {
        let function: ItemFn = syn::parse2(item).map_err(|e| {
            let text = format!("#[kernel] goes on a function: {e}");
            Error::new(e.span(), text)
        })?;
        let keys = Keys::parse.parse2(attribute)?;
        refuse_unsupported(&function)?;

        let name = function.sig.ident;
        let missing = |key: &str, example: &str| {
            Error::new(Span::call_site(), format!("kernel `{name}` has no `{key}`: add `{key} = {example}`"))
        };
        let block = keys.block.ok_or_else(|| missing("block", "256"))?;
        let grid = keys.grid.ok_or_else(|| missing("grid", "n.div_ceil(256)"))?;

        let mut arguments = Vec::new();
        let mut errors: Option<Error> = None;
        for input in &function.sig.inputs {
            match Argument::parse(input) {
                Ok(argument) => arguments.push(argument),
                Err(error) => match &mut errors {
                    Some(errors) => errors.combine(error),
                    None => errors = Some(error),
                },
            }
        }
        if let Some(error) = errors {
            return Err(error);
        }

        let (docs, attributes) = function.attrs.into_iter().partition(|a| a.path().is_ident("doc"));
        Ok(Kernel {
            name,
            visibility: function.vis,
            docs,
            attributes,
            arguments,
            body: function.block.stmts,
            block,
            grid,
            shared: keys.shared,
            limits: keys.limits,
            resident: keys.resident,
            only: keys.only,
            requires: keys.requires.unwrap_or_default(),
        })
    }
}

/// A kernel is a plain function without result: anything else has no meaning as a PTX entry.
fn refuse_unsupported(function: &ItemFn) -> Result<()> {
    let sig = &function.sig;
    let refuse = |span: Span, what: &str| Err(Error::new(span, format!("a kernel cannot be {what}")));
    if let Some(token) = &sig.asyncness {
        return refuse(token.span(), "async");
    }
    if let Some(token) = &sig.constness {
        return refuse(token.span(), "const");
    }
    if let Some(token) = &sig.unsafety {
        return refuse(token.span(), "unsafe: its launch contract goes into `requires`");
    }
    if let Some(abi) = &sig.abi {
        return refuse(abi.span(), "extern: the attribute gives it the PTX calling convention");
    }
    if let Some(parameter) = sig.generics.params.first() {
        return refuse(parameter.span(), "generic: a PTX entry has one set of parameters");
    }
    if let Some(clause) = &sig.generics.where_clause {
        return refuse(clause.span(), "generic");
    }
    if let Some(variadic) = &sig.variadic {
        return refuse(variadic.span(), "variadic");
    }
    if let ReturnType::Type(_, ty) = &sig.output {
        return Err(Error::new(ty.span(), "a kernel returns nothing: write results to an `Out` buffer"));
    }
    Ok(())
}

impl Argument {
    fn parse(input: &FnArg) -> Result<Argument> {
        let FnArg::Typed(input) = input else {
            return Err(Error::new(input.span(), "a kernel has no `self`"));
        };
        let Pat::Ident(pattern) = &*input.pat else {
            return Err(Error::new(input.pat.span(), "a kernel argument is a plain name"));
        };
        if pattern.by_ref.is_some() || pattern.subpat.is_some() {
            return Err(Error::new(pattern.span(), "a kernel argument is a plain name"));
        }
        if let Some(attribute) = input.attrs.iter().find(|a| !a.path().is_ident("doc")) {
            return Err(Error::new(attribute.span(), "only doc comments are allowed on a kernel argument"));
        }
        Ok(Argument {
            name: pattern.ident.clone(),
            mutable: pattern.mutability.is_some(),
            docs: input.attrs.clone(),
            ty: (*input.ty).clone(),
            kind: ArgumentKind::parse(&input.ty)?,
        })
    }
}

impl ArgumentKind {
    fn parse(ty: &Type) -> Result<ArgumentKind> {
        let unsupported = || {
            Error::new(
                ty.span(),
                format!(
                    "unsupported kernel argument type: use a scalar ({}) or a buffer ({} of {})",
                    SCALARS.join(", "),
                    BUFFERS.join(", "),
                    ELEMENTS.join(", ")
                ),
            )
        };
        let Type::Path(path) = ty else { return Err(unsupported()) };
        let segment = path.path.segments.last().ok_or_else(unsupported)?;
        let (name, one_of) = (&segment.ident, |names: &[&str]| names.iter().any(|n| segment.ident == n));
        match &segment.arguments {
            PathArguments::None if one_of(&SCALARS) => Ok(ArgumentKind::Scalar(name.clone())),
            PathArguments::AngleBracketed(arguments) if one_of(&BUFFERS) => {
                let mut arguments = arguments.args.iter();
                let (Some(GenericArgument::Type(Type::Path(element))), None) =
                    (arguments.next(), arguments.next())
                else {
                    return Err(unsupported());
                };
                match element.path.get_ident() {
                    Some(element) if ELEMENTS.iter().any(|e| element == e) => {
                        Ok(ArgumentKind::Buffer { access: name.clone(), element: element.clone() })
                    }
                    _ => {
                        let text = format!("unsupported buffer element: use one of {}", ELEMENTS.join(", "));
                        Err(Error::new(element.span(), text))
                    }
                }
            }
            _ => Err(unsupported()),
        }
    }
}

impl Keys {
    fn parse(input: ParseStream) -> Result<Keys> {
        let mut keys = Keys::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "block" => set(&mut keys.block, &key, value(input)?)?,
                "grid" => set(&mut keys.grid, &key, value(input)?)?,
                "shared" => set(&mut keys.shared, &key, value(input)?)?,
                "barriers" => set(&mut keys.limits.barriers, &key, value(input)?)?,
                "shuffles" => set(&mut keys.limits.shuffles, &key, value(input)?)?,
                "votes" => set(&mut keys.limits.votes, &key, value(input)?)?,
                "mmas" => set(&mut keys.limits.mmas, &key, value(input)?)?,
                "resident" => set(&mut keys.resident, &key, value(input)?)?,
                "only" => {
                    input.parse::<Token![=]>()?;
                    set(&mut keys.only, &key, input.parse()?)?
                }
                "requires" => {
                    let content;
                    syn::parenthesized!(content in input);
                    set(&mut keys.requires, &key, relations(&content)?)?;
                }
                other => {
                    let text = format!(
                        "unknown key `{other}`: a kernel has `block`, `grid`, `shared`, `barriers`, `shuffles`, \
                         `votes`, `mmas`, `resident`, `only` and `requires(..)`"
                    );
                    return Err(Error::new(key.span(), text));
                }
            }
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(keys)
    }
}

/// `= expression` after a key.
fn value(input: ParseStream) -> Result<Expr> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Stores a key's value; a second one is an error.
fn set<T>(slot: &mut Option<T>, key: &Ident, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Error::new(key.span(), format!("`{key}` is given twice"))),
    }
}

/// The comma-separated conditions inside `requires(..)`.
fn relations(input: ParseStream) -> Result<Vec<Relation>> {
    let mut relations = Vec::new();
    while !input.is_empty() {
        let mut cursor = input.cursor();
        let expression: Expr = input.parse()?;
        let end = input.cursor();
        // The tokens as written keep their spacing, which a parsed expression does not.
        let mut text = TokenStream::new();
        while cursor != end {
            let Some((token, next)) = cursor.token_tree() else { break };
            text.extend([token]);
            cursor = next;
        }
        relations.push(Relation { expression, text });
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(relations)
}

#[cfg(test)]
mod tests {
    use quote::quote;

    use super::*;

    /// The message that `#[kernel(attribute)]` on `item` is refused with.
    fn refused(attribute: TokenStream, item: TokenStream) -> String {
        match Kernel::parse(attribute, item) {
            Ok(kernel) => panic!("`{}` was accepted", kernel.name),
            Err(error) => error.to_string(),
        }
    }

    fn refused_item(item: TokenStream) -> String {
        refused(quote!(block = 32, grid = 1), item)
    }

    #[test]
    fn a_kernel_is_read() {
        let kernel = Kernel::parse(
            quote!(
                block = 32,
                grid = (n, 2),
                shared = 4 * n,
                barriers = 1,
                requires(x.len() > 0, f::<A, B>(n)),
            ),
            quote! {
                /// Doc.
                #[allow(unused)]
                pub fn name(/** Count. */ n: u32, mut x: cuda_std::In<f32>) { let _ = n; }
            },
        );
        let kernel = kernel.unwrap();
        assert_eq!((kernel.docs.len(), kernel.attributes.len(), kernel.body.len()), (1, 1, 1));
        let texts: Vec<String> = kernel.requires.iter().map(|r| r.text.to_string()).collect();
        assert_eq!(texts.len(), 2, "a comma inside of a relation does not end it: {texts:?}");
        assert!(kernel.limits.barriers.is_some() && kernel.limits.shuffles.is_none());
        let [n, x] = &kernel.arguments[..] else { panic!("two arguments") };
        assert!(matches!(&n.kind, ArgumentKind::Scalar(ty) if ty == "u32") && n.docs.len() == 1);
        assert!(x.mutable);
        assert!(
            matches!(&x.kind, ArgumentKind::Buffer { access, element } if access == "In" && element == "f32")
        );
    }

    #[test]
    fn keys_are_checked() {
        let item = quote!(
            fn k(n: u32) {}
        );
        let message = |attribute| refused(attribute, item.clone());
        assert!(message(quote!(grid = 1)).contains("kernel `k` has no `block`"));
        assert!(message(quote!(block = 32)).contains("kernel `k` has no `grid`"));
        assert!(message(quote!(block = 32, grid = 1, blocks = 2)).contains("unknown key `blocks`"));
        assert!(message(quote!(block = 32, block = 64, grid = 1)).contains("`block` is given twice"));
        assert!(message(quote!(block(32))).contains("expected `=`"));
        assert!(message(quote!(block = 32, grid = 1, only = sm_90a)).contains("expected string literal"));
    }

    #[test]
    fn arguments_are_checked() {
        assert!(
            refused_item(quote!(
                fn k(n: usize) {}
            ))
            .contains("unsupported kernel argument type: use a scalar (u32")
        );
        assert!(
            refused_item(quote!(
                fn k(x: &[f32]) {}
            ))
            .contains("unsupported kernel argument type")
        );
        assert!(
            refused_item(quote!(
                fn k(x: In<f32, f32>) {}
            ))
            .contains("unsupported kernel argument type")
        );
        assert!(
            refused_item(quote!(
                fn k(x: In<bool>) {}
            ))
            .contains("unsupported buffer element: use one of f32")
        );
        assert!(
            refused_item(quote!(
                fn k((a, b): u32) {}
            ))
            .contains("plain name")
        );
        assert!(
            refused_item(quote!(
                fn k(&self) {}
            ))
            .contains("no `self`")
        );
        assert!(
            refused_item(quote!(
                fn k(#[cfg(x)] n: u32) {}
            ))
            .contains("only doc comments")
        );
        // Every wrong argument is named, not only the first.
        let error = Kernel::parse(
            quote!(block = 1, grid = 1),
            quote!(
                fn k(a: bool, b: u32, c: char) {}
            ),
        );
        assert_eq!(error.err().map(|e| e.into_iter().count()), Some(2));
    }

    #[test]
    fn functions_are_checked() {
        assert!(
            refused_item(quote!(
                fn k<T>(n: u32) {}
            ))
            .contains("generic")
        );
        assert!(
            refused_item(quote!(
                async fn k() {}
            ))
            .contains("async")
        );
        assert!(
            refused_item(quote!(
                const fn k() {}
            ))
            .contains("const")
        );
        assert!(
            refused_item(quote!(
                unsafe fn k() {}
            ))
            .contains("`requires`")
        );
        assert!(
            refused_item(quote!(
                extern "C" fn k() {}
            ))
            .contains("extern")
        );
        assert!(
            refused_item(quote!(
                fn k() -> u32 {
                    1
                }
            ))
            .contains("returns nothing")
        );
        assert!(
            refused_item(quote!(
                struct K;
            ))
            .contains("goes on a function")
        );
    }
}
