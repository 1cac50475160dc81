//! The account of one environment as a bookkeeper would keep it: every cash movement is a line from one book to
//! another, and every number is a sum over the lines. Slow, f64, and written from SPEC section 6 without the
//! functions of `crate::market`.

/// Where money can be. Every movement takes it from one book to another, so all books always sum to 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Book {
    /// Cash of the account.
    Cash,
    /// Units held, at their last mark.
    Position,
    /// Where the initial cash came from.
    Capital,
    /// Fees paid.
    Fees,
    /// Interest paid on borrowed cash.
    Financing,
    /// Paid for borrowed units.
    Borrow,
    /// Other side of all marks: the gains (negative balance) and losses of trading.
    Result,
}

/// One line of the ledger.
#[derive(Clone, Copy, Debug)]
pub struct Movement {
    /// Bar during which it happened.
    pub bar: usize,
    /// Book it leaves.
    pub from: Book,
    /// Book it enters.
    pub to: Book,
    /// Amount in the quote currency; negative is the other direction.
    pub amount: f64,
    /// Units that enter the position with it.
    pub units: f64,
}

/// Costs and limits, named as in SPEC section 6. Fractions and yearly rates.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are those of MarketParams, where they are documented")]
pub struct Costs {
    pub half_spread: f64,
    pub slippage: f64,
    pub impact: f64,
    pub taker_fee: f64,
    pub maker_fee: f64,
    pub financing: f64,
    pub borrow: f64,
    pub lambda: f64,
    pub ruin: f64,
    pub ruin_reward: f64,
    pub c: f64,
    pub initial: f64,
}

/// Open, high, low, close and time in years of one bar.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "four prices and a time")]
pub struct Quote {
    pub open: f64,
    pub high: f64,
    pub low: f64,
    pub close: f64,
    pub years: f64,
}

/// What a step did, from the books.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the names are those of StepOutcome, where they are documented")]
pub struct Line {
    pub reward: f64,
    pub terminated: bool,
    pub cash: f64,
    pub units: f64,
    pub equity: f64,
    /// Fees, financing and borrow paid since the start.
    pub fees: f64,
    pub financing: f64,
    pub borrow: f64,
    /// Sum of the absolute amounts of all movements: the scale of rounding errors.
    pub scale: f64,
}

/// The books of one account.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    /// All lines, oldest first.
    pub movements: Vec<Movement>,
    peak: f64,
}

impl Ledger {
    /// Books with the initial cash.
    pub fn open(costs: &Costs, bar: usize) -> Self {
        let mut ledger = Self { movements: Vec::new(), peak: costs.initial };
        ledger.enter(bar, Book::Capital, Book::Cash, costs.initial, 0.0);
        ledger
    }

    fn enter(&mut self, bar: usize, from: Book, to: Book, amount: f64, units: f64) {
        self.movements.push(Movement { bar, from, to, amount, units });
    }

    /// Money in a book.
    pub fn balance(&self, book: Book) -> f64 {
        let entered: f64 = self.movements.iter().filter(|m| m.to == book).map(|m| m.amount).sum();
        let left: f64 = self.movements.iter().filter(|m| m.from == book).map(|m| m.amount).sum();
        entered - left
    }

    /// Units held.
    pub fn units(&self) -> f64 {
        self.movements.iter().map(|m| m.units).sum()
    }

    /// Brings the position's book to `price`.
    fn mark(&mut self, bar: usize, price: f64) {
        let change = self.units() * price - self.balance(Book::Position);
        self.enter(bar, Book::Result, Book::Position, change, 0.0);
    }

    /// One bar: `branches` decided at the close of `now`, executed inside `next`. `bar` is the index of `next`.
    pub fn step(&mut self, costs: &Costs, bar: usize, now: &Quote, next: &Quote, branches: &[usize]) -> Line {
        let equity = self.balance(Book::Cash) + self.units() * now.close;
        let drawdown = (self.peak - equity) / self.peak;
        let years = next.years - now.years;

        let borrowed_cash = f64::max(0.0, -self.balance(Book::Cash));
        let short_notional = f64::max(0.0, -self.units() * now.close);
        self.enter(bar, Book::Cash, Book::Financing, costs.financing * years * borrowed_cash, 0.0);
        self.enter(bar, Book::Cash, Book::Borrow, costs.borrow * years * short_notional, 0.0);

        let (target, order, urgency) = meaning(branches);
        let exposure = self.units() * now.close / equity;
        let dq = urgency * (target - exposure) * equity / now.close;
        if let Some((price, fee_rate)) = fill(costs, order, dq, equity, now, next) {
            self.enter(bar, Book::Cash, Book::Position, dq * price, dq);
            self.enter(bar, Book::Cash, Book::Fees, fee_rate * (dq * price).abs(), 0.0);
        }
        self.mark(bar, next.close);

        let after = self.balance(Book::Cash) + self.balance(Book::Position);
        self.peak = self.peak.max(after);
        let terminated = after <= costs.ruin * costs.initial;
        let reward = if terminated {
            let units = self.units();
            self.enter(bar, Book::Position, Book::Cash, units * next.close, -units);
            costs.ruin_reward
        } else {
            let deeper = f64::max(0.0, (self.peak - after) / self.peak - drawdown);
            costs.c * (after / equity).ln() - costs.lambda * deeper
        };
        Line {
            reward,
            terminated,
            cash: self.balance(Book::Cash),
            units: self.units(),
            equity: after,
            fees: self.balance(Book::Fees),
            financing: self.balance(Book::Financing),
            borrow: self.balance(Book::Borrow),
            scale: self.movements.iter().map(|m| m.amount.abs()).sum(),
        }
    }
}

/// Target exposure, order type (0 market, 1 limit, 2 passive) and urgency of 3 branches (exposure, order, urgency) or
/// 4 (direction, magnitude, order, urgency).
fn meaning(branches: &[usize]) -> (f64, usize, f64) {
    const EXPOSURE: [f64; 9] = [-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0];
    const MAGNITUDE: [f64; 3] = [0.25, 0.5, 1.0];
    const URGENCY: [f64; 3] = [1.0 / 3.0, 2.0 / 3.0, 1.0];
    match *branches {
        [exposure, order, urgency] => (EXPOSURE[exposure], order, URGENCY[urgency]),
        [0, magnitude, order, urgency] => (-MAGNITUDE[magnitude], order, URGENCY[urgency]),
        [1, _, order, urgency] => (0.0, order, URGENCY[urgency]),
        [2, magnitude, order, urgency] => (MAGNITUDE[magnitude], order, URGENCY[urgency]),
        _ => panic!("{branches:?} is no action of 3 or 4 branches"),
    }
}

/// Price and fee rate of an order of `dq` units, or `None` when it does not fill.
fn fill(costs: &Costs, order: usize, dq: f64, equity: f64, now: &Quote, next: &Quote) -> Option<(f64, f64)> {
    let sign = if dq > 0.0 {
        1.0
    } else if dq < 0.0 {
        -1.0
    } else {
        return None;
    };
    if order == 0 {
        let worse = costs.half_spread + costs.slippage + costs.impact * dq.abs() * now.close / equity;
        return Some((next.open * (1.0 + sign * worse), costs.taker_fee));
    }
    let limit = now.close * (1.0 - if order == 2 { sign * costs.half_spread } else { 0.0 });
    if sign > 0.0 {
        (next.low < limit).then(|| (limit.min(next.open), costs.maker_fee))
    } else {
        (next.high > limit).then(|| (limit.max(next.open), costs.maker_fee))
    }
}
