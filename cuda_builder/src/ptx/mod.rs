//! Reads what the checks need from PTX text: entries with their parameters, functions, and in each body the
//! instructions that several threads execute together, and the calls.
//!
//! The syntax is that of the PTX ISA manual; whatever else stands in a body is skipped statement by statement.

mod body;
mod parser;
mod token;

use std::fmt;

pub(crate) use body::{Body, Collective};
pub(crate) use parser::parse;

/// PTX text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PtxError {
    /// Line of the text, from 1.
    pub line: u32,
    pub problem: String,
}

impl PtxError {
    fn new(line: u32, problem: impl Into<String>) -> PtxError {
        PtxError { line, problem: problem.into() }
    }
}

/// One PTX text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Module<'a> {
    /// Kernels.
    pub entries: Vec<Entry<'a>>,
    /// Device functions that were not inlined and have a body here.
    pub functions: Vec<Function<'a>>,
}

/// A kernel (`.entry`).
#[derive(Clone, Debug)]
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    pub line: u32,
    pub parameters: Vec<Parameter<'a>>,
    /// Byte offset behind the parameter list, where performance directives go.
    pub after_parameters: usize,
    /// Byte offset behind the brace that opens the body.
    pub body_start: usize,
    /// Performance directives that are already there (`.reqntid`, `.maxntid`, ...).
    pub directives: Vec<&'a str>,
    pub body: Body<'a>,
}

/// A device function (`.func`).
#[derive(Clone, Debug)]
pub(crate) struct Function<'a> {
    pub name: &'a str,
    pub body: Body<'a>,
}

/// A parameter of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter<'a> {
    /// `u32`, `u64`, `f32`, `b8`, ... without the dot.
    pub ty: &'a str,
    /// Whether it is marked as an address (`.ptr`).
    pub pointer: bool,
    /// Whether it is an array of bytes: a structure passed by value.
    pub array: bool,
}

impl fmt::Display for Parameter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            ".{}{}{}",
            self.ty,
            if self.pointer { " .ptr" } else { "" },
            if self.array { "[]" } else { "" }
        )
    }
}

/// The text without what changes with comments, layout and line numbers of the source: a stable input to hashes.
pub(crate) fn normalised(text: &str) -> Result<String, PtxError> {
    let tokens = token::tokens(text)?;
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < tokens.len() {
        let token = tokens[at];
        if matches!(token.text, ".loc" | ".file") {
            at += tokens[at..].iter().take_while(|t| t.line == token.line).count();
            continue;
        }
        let label = tokens.get(at + 1).is_some_and(|t| t.text == ":");
        if label && (token.text.starts_with("$L__tmp") || token.text.starts_with("$L__func_")) {
            at += 2;
            continue;
        }
        out.push_str(token.text);
        out.push(' ');
        at += 1;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalised_text_has_no_source_lines() {
        let a = "\t.loc\t1 31 0, function_name $L_x, inlined_at 1 2 3\n\n$L__tmp3:\n\tbar.sync \t0;\n$L__BB0_1:\n.file 1 \"a\"\n";
        let b = "// other\nbar.sync 0; $L__BB0_1:";
        assert_eq!(normalised(a).unwrap(), normalised(b).unwrap());
        assert_ne!(normalised(a).unwrap(), normalised("bar.sync 1; $L__BB0_1:").unwrap());
    }
}
