//! The instructions of one body that matter to the checks.

use super::PtxError;
use super::token::Token;

/// Kinds of instructions that all threads of a block or warp must reach together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Collective {
    /// Block and cluster barriers.
    Barrier,
    /// `shfl.sync`.
    Shuffle,
    /// Votes, matches, warp reductions and warp barriers.
    Vote,
    /// Matrix instructions of a warp or warp group.
    Matrix,
}

impl Collective {
    pub const ALL: [Collective; 4] =
        [Collective::Barrier, Collective::Shuffle, Collective::Vote, Collective::Matrix];

    /// For messages, and the name of the limit in a kernel's declaration.
    pub fn limit_name(self) -> &'static str {
        match self {
            Collective::Barrier => "barriers",
            Collective::Shuffle => "shuffles",
            Collective::Vote => "votes",
            Collective::Matrix => "mmas",
        }
    }

    /// The kind of an opcode; `Err` for a synchronising instruction of no known kind, which nobody would count.
    fn of(opcode: &str) -> Result<Option<Collective>, ()> {
        let mut parts = opcode.split('.');
        let family = parts.next().unwrap_or_default();
        let next = parts.next().unwrap_or_default();
        Ok(Some(match family {
            // `bar.warp.sync` orders one warp; the other forms of `bar` and `barrier` a block or a cluster.
            "bar" | "barrier" if next == "warp" => Collective::Vote,
            "bar" | "barrier" => Collective::Barrier,
            "shfl" => Collective::Shuffle,
            "vote" | "match" | "activemask" | "redux" | "elect" => Collective::Vote,
            "mma" | "wmma" | "wgmma" | "ldmatrix" | "stmatrix" | "movmatrix" => Collective::Matrix,
            _ if opcode.split('.').any(|part| part == "sync" || part == "aligned") => return Err(()),
            _ => return Ok(None),
        }))
    }
}

/// What was found in a body.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body<'a> {
    /// Collective instructions in order, with their lines.
    pub collectives: Vec<(Collective, u32)>,
    /// Called functions, one entry a call, with its line.
    pub calls: Vec<(&'a str, u32)>,
    /// Lines of calls through a register.
    pub indirect_calls: Vec<u32>,
}

/// Reads a body from behind its `{`; returns it and the number of tokens including the closing `}`.
pub(super) fn parse<'a>(tokens: &[Token<'a>], open: Token<'a>) -> Result<(Body<'a>, usize), PtxError> {
    let unfinished = || PtxError::new(open.line, "a body has no end");
    let statement_end = |from: usize| {
        tokens[from..].iter().position(|t| t.text == ";").map(|n| from + n).ok_or_else(unfinished)
    };
    let mut body = Body::default();
    let mut depth = 1;
    let mut at = 0;
    loop {
        let token = *tokens.get(at).ok_or_else(unfinished)?;
        match token.text {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return Ok((body, at + 1));
                }
            }
            ";" => {}
            // Predicate: `@%p1` or `@!%p1`.
            "@" => at += if tokens.get(at + 1).is_some_and(|t| t.text == "!") { 2 } else { 1 },
            ".loc" | ".file" => {
                at += tokens[at..].iter().take_while(|t| t.line == token.line).count();
                continue;
            }
            directive if directive.starts_with('.') => at = statement_end(at)?,
            _ if !token.is_word() => {
                return Err(PtxError::new(
                    token.line,
                    format!("`{}` does not begin a statement", token.text),
                ));
            }
            _ if tokens.get(at + 1).is_some_and(|t| t.text == ":") => at += 1,
            opcode => {
                let end = statement_end(at)?;
                match Collective::of(opcode) {
                    Ok(None) => {}
                    Ok(Some(kind)) => body.collectives.push((kind, token.line)),
                    Err(()) => {
                        let problem =
                            format!("`{opcode}` synchronises threads, but no limit of a kernel counts it");
                        return Err(PtxError::new(token.line, problem));
                    }
                }
                if opcode == "call" || opcode.starts_with("call.") {
                    let target = call_target(&tokens[at + 1..end])
                        .ok_or_else(|| PtxError::new(token.line, "a call without a target"))?;
                    if target.starts_with('%') {
                        body.indirect_calls.push(token.line);
                    } else {
                        body.calls.push((target, token.line));
                    }
                }
                at = end;
            }
        }
        at += 1;
    }
}

/// The function in `(results), function, (arguments)`; results and arguments may be missing.
fn call_target<'a>(operands: &[Token<'a>]) -> Option<&'a str> {
    let mut operands = operands;
    if operands.first()?.text == "(" {
        let close = operands.iter().position(|t| t.text == ")")?;
        // Behind the `)` is a comma.
        operands = operands.get(close + 2..)?;
    }
    operands.first().filter(|t| t.is_word()).map(|t| t.text)
}

#[cfg(test)]
mod tests {
    use super::super::token::tokens;
    use super::*;

    fn body(text: &str) -> Result<Body<'_>, PtxError> {
        let all = tokens(text).unwrap();
        assert_eq!(all[0].text, "{");
        let (body, used) = parse(&all[1..], all[0])?;
        assert_eq!(used, all.len() - 1);
        Ok(body)
    }

    fn kinds(text: &str) -> Vec<Collective> {
        body(text).unwrap().collectives.into_iter().map(|(kind, _)| kind).collect()
    }

    #[test]
    fn collectives_are_told_from_look_alikes() {
        use Collective::*;
        assert_eq!(
            kinds(
                "{ .reg .b32 %r<4>; bar.sync 0; barrier.sync 1, 64; barrier.cluster.arrive; bar.red.popc.u32 %r1, 0, %p1;
                   @%p1 shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1;
                   vote.sync.ballot.b32 %r1, %p1, -1; match.any.sync.b32 %r1, %r2, -1; activemask.b32 %r1;
                   bar.warp.sync -1; redux.sync.add.s32 %r1, %r2, -1;
                   mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r1, %r2}, {%r3}, {%r4}, {%r1};
                   membar.gl; fence.acq_rel.gpu; bra bar; mbarrier.arrive.b64 _, [%rd1]; cp.async.wait_group 0;
                   mov.b32 %r1, barrier; ret; }"
            ),
            [Barrier, Barrier, Barrier, Barrier, Shuffle, Vote, Vote, Vote, Vote, Vote, Matrix]
        );
    }

    #[test]
    fn an_unknown_synchronising_instruction_is_refused() {
        let error = body("{\n  setmaxnreg.inc.sync.aligned.u32 240;\n}").unwrap_err();
        assert_eq!(error.line, 2);
        assert!(error.problem.contains("setmaxnreg.inc.sync.aligned.u32"), "{}", error.problem);
    }

    #[test]
    fn statements_after_labels_predicates_blocks_and_lines_are_seen() {
        let text = "{\n .loc 1 2 3\n$L__tmp0:\n$L__BB0_1: @!%p1 bar.sync 0;\n{ // callseq 0\n .param .b64 p;\n bar.sync 0; }\n
            // begin inline asm\n trap; bar.sync 0;\n}";
        let lines: Vec<_> = body(text).unwrap().collectives.into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, [4, 7, 10]);
    }

    #[test]
    fn calls_name_their_target() {
        let found = body(
            "{ call.uni (retval0), f, (param0, param1); call.uni g, (a); call h;
               p_0: .callprototype (.param .b32 _) _ (.param .b64 _);\n call (retval0), %rd1, (param0), p_0; }",
        )
        .unwrap();
        assert_eq!(found.calls.iter().map(|c| c.0).collect::<Vec<_>>(), ["f", "g", "h"]);
        assert_eq!(found.indirect_calls, [3]);
    }

    #[test]
    fn a_cut_off_body_is_an_error() {
        assert_eq!(body("{ bar.sync 0").unwrap_err().line, 1);
        assert_eq!(body("\n{ bar.sync 0; {").unwrap_err().line, 2);
        assert!(body("{ call (a; }").unwrap_err().problem.contains("target"));
    }
}
