//! Host-side expressions (`grid`, `shared`, `requires`) must not overflow unseen: in a release build
//! `rows * cols` would wrap and a relation that should fail would hold. So `+ - * / %`, negation, `as` and
//! `.div_ceil(..)` become calls of `cuda_std::contract`, which give `None` on overflow, and the expression is
//! evaluated in a closure that returns `Option`.

use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Expr, UnOp, parse_quote_spanned};

/// The expression with its arithmetic checked; `?` leaves the enclosing closure on overflow.
pub fn checked(expression: &Expr) -> Expr {
    let mut expression = expression.clone();
    Rewrite.visit_expr_mut(&mut expression);
    expression
}

struct Rewrite;

impl VisitMut for Rewrite {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        // `?` inside a nested closure or constant would leave that one instead: those stay as written.
        if matches!(expression, Expr::Closure(_) | Expr::Const(_) | Expr::Async(_) | Expr::Macro(_)) {
            return;
        }
        visit_mut::visit_expr_mut(self, expression);
        let span = expression.span();
        let rewritten = match &*expression {
            Expr::Binary(binary) => {
                let (left, right) = (&binary.left, &binary.right);
                match binary.op {
                    BinOp::Add(_) => parse_quote_spanned!(span=> ::cuda_std::contract::add(#left, #right)?),
                    BinOp::Sub(_) => parse_quote_spanned!(span=> ::cuda_std::contract::sub(#left, #right)?),
                    BinOp::Mul(_) => parse_quote_spanned!(span=> ::cuda_std::contract::mul(#left, #right)?),
                    BinOp::Div(_) => parse_quote_spanned!(span=> ::cuda_std::contract::div(#left, #right)?),
                    BinOp::Rem(_) => parse_quote_spanned!(span=> ::cuda_std::contract::rem(#left, #right)?),
                    _ => return,
                }
            }
            Expr::Unary(unary) => {
                let operand = &unary.expr;
                match unary.op {
                    UnOp::Neg(_) => parse_quote_spanned!(span=> ::cuda_std::contract::neg(#operand)?),
                    _ => return,
                }
            }
            Expr::Cast(cast) => {
                let (operand, ty) = (&cast.expr, &cast.ty);
                parse_quote_spanned!(span=> ::cuda_std::contract::cast::<_, #ty>(#operand)?)
            }
            Expr::MethodCall(call) if call.method == "div_ceil" && call.args.len() == 1 => {
                let (receiver, divisor) = (&call.receiver, &call.args[0]);
                parse_quote_spanned!(span=> ::cuda_std::contract::div_ceil(#receiver, #divisor)?)
            }
            _ => return,
        };
        *expression = rewritten;
    }
}
