//! The module level of PTX: directives, variables, functions, entries.

use super::token::{Token, tokens};
use super::{Entry, Function, Module, Parameter, PtxError, body};

/// Reads PTX text.
pub(crate) fn parse(text: &str) -> Result<Module<'_>, PtxError> {
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0 };
    let mut module = Module::default();
    let mut seen_version = false;
    while let Some(token) = parser.peek() {
        match token.text {
            // Directives that end with their line.
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => {
                seen_version |= token.text == ".version";
                parser.skip_line(token.line);
            }
            ".section" => parser.skip_block()?,
            ".entry" => module.entries.push(parser.entry()?),
            ".func" => module.functions.extend(parser.function()?),
            ".visible" | ".extern" | ".weak" | ".common" => parser.at += 1,
            text if text.starts_with('.') => parser.skip_statement()?,
            text => return Err(PtxError::new(token.line, format!("`{text}` outside of any function"))),
        }
    }
    if !seen_version {
        return Err(PtxError::new(1, "no .version directive: this is not PTX"));
    }
    Ok(module)
}

struct Parser<'t, 'a> {
    tokens: &'t [Token<'a>],
    at: usize,
}

impl<'a> Parser<'_, 'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Result<Token<'a>, PtxError> {
        let token = self.peek().ok_or_else(|| {
            PtxError::new(
                self.tokens.last().map_or(1, |t| t.line),
                "the text ends in the middle of a declaration",
            )
        })?;
        self.at += 1;
        Ok(token)
    }

    fn word(&mut self, what: &str) -> Result<Token<'a>, PtxError> {
        let token = self.next()?;
        if token.is_word() {
            return Ok(token);
        }
        Err(PtxError::new(token.line, format!("{what} expected, found `{}`", token.text)))
    }

    fn punctuation(&mut self, expected: &str) -> Result<Token<'a>, PtxError> {
        let token = self.next()?;
        if token.text == expected {
            return Ok(token);
        }
        Err(PtxError::new(token.line, format!("`{expected}` expected, found `{}`", token.text)))
    }

    fn skip_line(&mut self, line: u32) {
        while self.peek().is_some_and(|t| t.line == line) {
            self.at += 1;
        }
    }

    /// To behind the block that begins next.
    fn skip_block(&mut self) -> Result<(), PtxError> {
        while self.next()?.text != "{" {}
        let mut depth = 1;
        while depth > 0 {
            match self.next()?.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// To behind the next `;`; initialisers in braces have none inside.
    fn skip_statement(&mut self) -> Result<(), PtxError> {
        while self.next()?.text != ";" {}
        Ok(())
    }

    /// To behind the `)` of the `(` that comes next.
    fn skip_parentheses(&mut self) -> Result<Token<'a>, PtxError> {
        self.punctuation("(")?;
        loop {
            let token = self.next()?;
            if token.text == ")" {
                return Ok(token);
            }
        }
    }

    /// `.entry name (parameters) directives { body }`.
    fn entry(&mut self) -> Result<Entry<'a>, PtxError> {
        let line = self.next()?.line;
        let name = self.word("the name of an entry")?;
        let mut parameters = Vec::new();
        let mut after_parameters = name.end;
        if self.peek().is_some_and(|t| t.text == "(") {
            self.at += 1;
            loop {
                match self.peek() {
                    Some(token) if token.text == ")" => {
                        after_parameters = token.end;
                        self.at += 1;
                        break;
                    }
                    Some(token) if token.text == "," => self.at += 1,
                    _ => parameters.push(self.parameter()?),
                }
            }
        }
        let mut directives = Vec::new();
        loop {
            let token = self.next()?;
            match token.text {
                "{" => {
                    let (body, used) = body::parse(&self.tokens[self.at..], token)?;
                    self.at += used;
                    return Ok(Entry {
                        name: name.text,
                        line,
                        parameters,
                        after_parameters,
                        body_start: token.end,
                        directives,
                        body,
                    });
                }
                ";" => {
                    return Err(PtxError::new(line, format!("the entry `{}` has no body", name.text)));
                }
                text if text.starts_with('.') => directives.push(text),
                _ => {}
            }
        }
    }

    /// `.param .u64 .ptr .global .align 4 name` or `.param .align 8 .b8 name[16]`.
    fn parameter(&mut self) -> Result<Parameter<'a>, PtxError> {
        let first = self.word("a parameter")?;
        if first.text != ".param" {
            return Err(PtxError::new(first.line, format!("`.param` expected, found `{}`", first.text)));
        }
        let (mut ty, mut pointer) = (None, false);
        loop {
            let token = self.word("the name of a parameter")?;
            match token.text {
                ".ptr" => pointer = true,
                ".align" => {
                    self.word("an alignment")?;
                }
                ".global" | ".shared" | ".const" | ".local" => {}
                text if text.starts_with('.') => ty = Some(&text[1..]),
                name => {
                    let ty = ty.ok_or_else(|| {
                        PtxError::new(token.line, format!("the parameter `{name}` has no type"))
                    })?;
                    let array = self.peek().is_some_and(|t| t.text == "[");
                    if array {
                        while self.next()?.text != "]" {}
                    }
                    return Ok(Parameter { ty, pointer, array });
                }
            }
        }
    }

    /// `.func (result) name (parameters) attributes { body }`; `None` for one that is only declared.
    fn function(&mut self) -> Result<Option<Function<'a>>, PtxError> {
        self.next()?;
        while self.peek().is_some_and(|t| t.text.starts_with('.')) {
            // `.attribute(..)` may stand before the result.
            self.at += 1;
            if self.peek().is_some_and(|t| t.text == "(") && self.tokens[self.at - 1].text == ".attribute" {
                self.skip_parentheses()?;
            }
        }
        if self.peek().is_some_and(|t| t.text == "(") {
            self.skip_parentheses()?;
        }
        let name = self.word("the name of a function")?.text;
        loop {
            let token = self.next()?;
            match token.text {
                ";" => return Ok(None),
                "{" => {
                    let (body, used) = body::parse(&self.tokens[self.at..], token)?;
                    self.at += used;
                    return Ok(Some(Function { name, body }));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Collective;
    use super::*;

    const TEXT: &str = r#"
//
// Generated by LLVM NVPTX Back-End
//
.version 7.8
.target sm_90
.address_size 64

.extern .shared .align 16 .b8 SHARED[];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.func panic
(
	.param .b64 panic_param_0
)
.noreturn;
.func  (.param .b32 func_retval0) helper(
	.param .b64 helper_param_0
)
{
	bar.sync 	0;
	ret;
}
	// .globl	first
.visible .entry first(
	.param .u64 .ptr .align 1 first_param_0,
	.param .u32 first_param_1,
	.param .align 8 .b8 first_param_2[16],
	.param .f32 first_param_3
)
.maxntid 128, 1, 1
{
	.reg .pred 	%p<2>;
	call.uni (retval0), helper, (param0);
	ret;
}
.entry second()
{
	ret;
}
	.section	.debug_macinfo	{	}
	.file	1 "src/lib.rs"
"#;

    #[test]
    fn entries_functions_and_parameters() {
        let module = parse(TEXT).unwrap();
        assert_eq!(module.entries.iter().map(|e| e.name).collect::<Vec<_>>(), ["first", "second"]);
        let first = &module.entries[0];
        assert_eq!(
            first.parameters.iter().map(|p| p.to_string()).collect::<Vec<_>>(),
            [".u64 .ptr", ".u32", ".b8[]", ".f32"]
        );
        assert_eq!(first.directives, [".maxntid"]);
        assert_eq!(first.body.calls, [("helper", 33)]);
        assert!(TEXT[first.after_parameters..].starts_with("\n.maxntid"));
        assert!(module.entries[1].parameters.is_empty());
        // `panic` is declared only.
        assert_eq!(module.functions.len(), 1);
        assert_eq!(module.functions[0].body.collectives, [(Collective::Barrier, 20)]);
    }

    #[test]
    fn what_is_not_ptx_is_refused_with_the_line() {
        assert!(parse("").unwrap_err().problem.contains("not PTX"));
        assert_eq!(parse(".version 7.8\nret;").unwrap_err().line, 2);
        assert_eq!(parse(".version 7.8\n.entry k(\n.param .u32").unwrap_err().line, 3);
        assert_eq!(parse(".version 7.8\n.entry k(\n.reg .u32 x)").unwrap_err().line, 3);
        assert_eq!(parse(".version 7.8\n.entry k(.param x) {}").unwrap_err().line, 2);
        assert_eq!(parse(".version 7.8\n\n.entry k();").unwrap_err().line, 3);
    }
}
