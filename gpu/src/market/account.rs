//! The state of one environment, and how all environments' states lie in memory.

/// Number of f64 fields of an account.
pub const ACCOUNT_VALUES: u32 = 4;
/// Number of u32 fields of an account.
pub const ACCOUNT_COUNTERS: u32 = 7;

/// Flag: the account was ruined by its last step (bootstrapping stops).
pub const TERMINATED: u32 = 1;
/// Flag: the last step reached the end of the data window or of the episode (bootstrapping goes on).
pub const TRUNCATED: u32 = 2;
/// Flag: the account belongs to an episode. Zeroed memory, where it is not set, means "start an episode first".
pub const RUNNING: u32 = 4;
/// Flag: the last order was filled.
pub const FILLED: u32 = 8;

/// One environment's account at the close of bar `t`.
///
/// Field i of environment e lies at `i * E + e` in one of two buffers, f64 `[ACCOUNT_VALUES, E]` and u32
/// `[ACCOUNT_COUNTERS, E]`, so that neighbouring threads touch neighbouring words.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Account {
    /// Cash in the quote currency; negative when borrowed.
    pub cash: f64,
    /// q: units held; negative when short.
    pub quantity: f64,
    /// Highest equity at a close since the start of the episode, the start included.
    pub peak: f64,
    /// Average entry price of the open position; 0 without one.
    pub entry: f64,
    /// t: the bar whose close the account stands at.
    pub t: u32,
    /// Bar at whose close the episode began.
    pub start: u32,
    /// Bar at whose close the episode is cut: the planned end, or the last bar before a gap or the part's end.
    pub end: u32,
    /// Bar at whose close the episode was meant to end; the remaining fraction is measured to it, because `end`
    /// would tell the agent that a gap is coming.
    pub planned: u32,
    /// Bar of the last fill; the start of the episode before the first.
    pub last_trade: u32,
    /// [`TERMINATED`], [`TRUNCATED`], [`RUNNING`], [`FILLED`].
    pub flags: u32,
    /// Episodes begun so far; the counter of the start's random draw.
    pub episodes: u32,
}

impl Account {
    /// Reads an account; `value(i)` and `counter(i)` read field i of this environment.
    #[inline(always)]
    pub fn load(value: impl Fn(u32) -> f64, counter: impl Fn(u32) -> u32) -> Self {
        Self {
            cash: value(0),
            quantity: value(1),
            peak: value(2),
            entry: value(3),
            t: counter(0),
            start: counter(1),
            end: counter(2),
            planned: counter(3),
            last_trade: counter(4),
            flags: counter(5),
            episodes: counter(6),
        }
    }

    /// Writes an account; `value(i, v)` and `counter(i, v)` write field i of this environment.
    #[inline(always)]
    pub fn store(&self, mut value: impl FnMut(u32, f64), mut counter: impl FnMut(u32, u32)) {
        value(0, self.cash);
        value(1, self.quantity);
        value(2, self.peak);
        value(3, self.entry);
        counter(0, self.t);
        counter(1, self.start);
        counter(2, self.end);
        counter(3, self.planned);
        counter(4, self.last_trade);
        counter(5, self.flags);
        counter(6, self.episodes);
    }

    /// E = cash + q close.
    #[inline(always)]
    pub fn equity(&self, close: f64) -> f64 {
        self.cash + self.quantity * close
    }

    /// x = q close / E; exactly 0 without a position, also for a ruined account, whose equity may be 0.
    #[inline(always)]
    pub fn exposure(&self, close: f64) -> f64 {
        if self.quantity == 0.0 { 0.0 } else { self.quantity * close / self.equity(close) }
    }

    /// dd = 1 - E / peak.
    #[inline(always)]
    pub fn drawdown(&self, close: f64) -> f64 {
        1.0 - self.equity(close) / self.peak
    }

    /// The [`TERMINATED`] and [`TRUNCATED`] bits of the last step.
    #[inline(always)]
    pub fn end_flags(&self) -> u32 {
        self.flags & (TERMINATED | TRUNCATED)
    }

    /// True when the episode has ended by its last step.
    #[inline(always)]
    pub fn ended(&self) -> bool {
        self.end_flags() != 0
    }

    /// Books a trade of `quantity` units (negative: sold) at `price` with `fee`.
    #[inline(always)]
    pub fn trade(&mut self, quantity: f64, price: f64, fee: f64) {
        let before = self.quantity;
        let after = before + quantity;
        self.cash = self.cash - quantity * price - fee;
        self.quantity = after;
        self.entry = if after == 0.0 {
            0.0
        } else if before == 0.0 || (before > 0.0) != (after > 0.0) {
            price
        } else if (quantity > 0.0) == (before > 0.0) {
            (self.entry * before + price * quantity) / after
        } else {
            self.entry
        };
    }
}

/// Whether saved counters `[ACCOUNT_COUNTERS, environments]` stand on bars of a table of `bars` bars: the environment
/// reads prices by them without another look.
///
/// # Errors
/// [`MarketError::TooLarge`](super::MarketError::TooLarge) for the first bar that is behind the last one.
#[cfg(not(target_arch = "nvptx64"))]
pub fn check_counters(counters: &[u32], environments: usize, bars: usize) -> Result<(), super::MarketError> {
    // t, start, end; the planned end may lie behind the data.
    let positions = counters.iter().take(3 * environments);
    match positions.into_iter().find(|&&bar| bar as usize >= bars) {
        Some(&bar) => Err(super::MarketError::TooLarge {
            what: "bar of an account",
            got: bar as usize,
            most: bars.saturating_sub(1),
        }),
        None => Ok(()),
    }
}
