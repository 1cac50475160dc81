//! PTX text as words and punctuation.

use super::PtxError;

/// A word (`bar.sync`, `%rd1`, `.param`, `0f3F800000`), a quoted string, or one character of punctuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub text: &'a str,
    /// Line in the text, from 1.
    pub line: u32,
    /// Byte offset behind the token.
    pub end: usize,
}

impl Token<'_> {
    pub fn is_word(&self) -> bool {
        self.text.as_bytes().first().is_some_and(|&c| is_word(c))
    }
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// Splits PTX text; comments are left out.
pub(super) fn tokens(text: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let start = at;
        let first_line = line;
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            c if c.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'/' if bytes[at..].starts_with(b"//") => {
                at += bytes[at..].iter().position(|&c| c == b'\n').unwrap_or(bytes.len() - at);
                continue;
            }
            b'/' if bytes[at..].starts_with(b"/*") => {
                let length =
                    text[at..].find("*/").ok_or_else(|| PtxError::new(line, "a comment has no end"))?;
                line += count_lines(&bytes[at..at + length]);
                at += length + 2;
                continue;
            }
            b'"' => {
                at += 1;
                while *bytes.get(at).ok_or_else(|| PtxError::new(first_line, "a string has no end"))? != b'"'
                {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                line += count_lines(&bytes[start..at]);
            }
            c if is_word(c) => {
                // `::` belongs to the word in `ld.shared::cta`.
                while at < bytes.len() && (is_word(bytes[at]) || bytes[at..].starts_with(b"::")) {
                    at += if bytes[at] == b':' { 2 } else { 1 };
                }
            }
            c if c.is_ascii() => at += 1,
            _ => {
                return Err(PtxError::new(
                    line,
                    "a character that is not ASCII outside of strings and comments",
                ));
            }
        }
        out.push(Token { text: &text[start..at], line: first_line, end: at });
    }
    Ok(out)
}

fn count_lines(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&c| c == b'\n').count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        tokens(text).unwrap().into_iter().map(|t| t.text).collect()
    }

    #[test]
    fn words_punctuation_strings_and_comments() {
        assert_eq!(
            words("@%p1 bra $L_2; // bar.sync 0;\n/* bar.sync 0; \n*/ ld.shared::cta.b32 %r1, [%rd1+-4];"),
            [
                "@",
                "%p1",
                "bra",
                "$L_2",
                ";",
                "ld.shared::cta.b32",
                "%r1",
                ",",
                "[",
                "%rd1",
                "+",
                "-",
                "4",
                "]",
                ";"
            ]
        );
        assert_eq!(words(".file 1 \"a \\\" // b\" x:"), [".file", "1", "\"a \\\" // b\"", "x", ":"]);
    }

    #[test]
    fn lines_are_counted_through_comments() {
        let all = tokens("a\n/* \n\n */ b // c\nd").unwrap();
        assert_eq!(all.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 4, 5]);
    }

    #[test]
    fn unfinished_text_is_an_error_with_its_line() {
        assert_eq!(tokens("a\n\"b").unwrap_err().line, 2);
        assert_eq!(tokens("a\n\"b\\").unwrap_err().line, 2);
        assert_eq!(tokens("\n\n/* b").unwrap_err().line, 3);
    }
}
