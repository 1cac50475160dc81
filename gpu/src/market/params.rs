//! Costs, limits and mode of the environment, as the device reads them: one short buffer of f64.

/// Number of f64 words of [`MarketParams`] in device memory.
pub const PARAM_WORDS: u32 = 17;

/// How a factored action becomes an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionLayout {
    /// Exposure (9) x order (3) x urgency (3).
    Exposure,
    /// Direction (3) x magnitude (3) x order (3) x urgency (3): a subset of the orders of [`Self::Exposure`].
    DirectionMagnitude,
}

impl ActionLayout {
    /// Branch sizes of the layout.
    pub const fn branches(self) -> &'static [usize] {
        match self {
            Self::Exposure => &[9, 3, 3],
            Self::DirectionMagnitude => &[3, 3, 3, 3],
        }
    }

    /// The layout with exactly these branch sizes.
    pub fn from_branches(branches: &[usize]) -> Option<Self> {
        [Self::Exposure, Self::DirectionMagnitude].into_iter().find(|layout| layout.branches() == branches)
    }
}

/// What happens at the end of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Episodes of bounded length from random bars; an ended environment restarts before its next step.
    Train,
    /// One pass from the given bar to the part's last one, across gaps, never restarted.
    Backtest,
}

/// All numbers of the environment. Costs are fractions (1e-4 is one basis point), rates are per year.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MarketParams {
    /// Half the bid-ask spread, fraction of the mid price.
    pub half_spread: f64,
    /// Slippage of a market order, fraction of price.
    pub slippage: f64,
    /// Extra price of a market order per unit of |dq| close / E.
    pub impact: f64,
    /// Fee of a market order, fraction of notional.
    pub taker_fee: f64,
    /// Fee of a limit or passive order, fraction of notional.
    pub maker_fee: f64,
    /// Yearly rate on borrowed cash, max(0, -cash).
    pub financing: f64,
    /// Yearly rate on the notional of a short position, max(0, -q close).
    pub borrow: f64,
    /// lambda: weight of the growth of the drawdown in the reward.
    pub drawdown_penalty: f64,
    /// Fraction of the initial equity at or below which the episode terminates.
    pub ruin: f64,
    /// Reward of the step that ruins the account, instead of the logarithm.
    pub ruin_reward: f64,
    /// c: 1 / standard deviation of the training part's log returns per bar.
    pub reward_scale: f64,
    /// E_0: cash at the start of an episode, in units of the quote currency.
    pub initial_equity: f64,
    /// Discount of one step.
    pub gamma: f64,
    /// Longest episode in steps; its end is a truncation ([`Mode::Train`] only).
    pub episode: u32,
    /// Last bar of the part ([`Mode::Backtest`]: the pass ends there).
    pub last_bar: u32,
    /// Meaning of the action branches.
    pub layout: ActionLayout,
    /// Training episodes or one backtest pass.
    pub mode: Mode,
}

impl MarketParams {
    /// The words of the device's parameter buffer. Integers below 2^32 are exact in f64.
    pub fn words(&self) -> [f64; PARAM_WORDS as usize] {
        [
            self.half_spread,
            self.slippage,
            self.impact,
            self.taker_fee,
            self.maker_fee,
            self.financing,
            self.borrow,
            self.drawdown_penalty,
            self.ruin,
            self.ruin_reward,
            self.reward_scale,
            self.initial_equity,
            self.gamma,
            self.episode as f64,
            self.last_bar as f64,
            match self.layout {
                ActionLayout::Exposure => 0.0,
                ActionLayout::DirectionMagnitude => 1.0,
            },
            match self.mode {
                Mode::Train => 0.0,
                Mode::Backtest => 1.0,
            },
        ]
    }

    /// Inverse of [`Self::words`]; `word(i)` reads word i. Unused fields cost nothing on the device.
    #[inline(always)]
    pub fn load(word: impl Fn(u32) -> f64) -> Self {
        Self {
            half_spread: word(0),
            slippage: word(1),
            impact: word(2),
            taker_fee: word(3),
            maker_fee: word(4),
            financing: word(5),
            borrow: word(6),
            drawdown_penalty: word(7),
            ruin: word(8),
            ruin_reward: word(9),
            reward_scale: word(10),
            initial_equity: word(11),
            gamma: word(12),
            episode: word(13) as u32,
            last_bar: word(14) as u32,
            layout: if word(15) == 0.0 { ActionLayout::Exposure } else { ActionLayout::DirectionMagnitude },
            mode: if word(16) == 0.0 { Mode::Train } else { Mode::Backtest },
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
impl MarketParams {
    /// Checks every number; the error names the field, its value and what is expected.
    ///
    /// # Errors
    /// [`MarketError::Param`](super::MarketError::Param) for the first field that cannot work.
    pub fn check(&self) -> Result<(), super::MarketError> {
        let err = |name, value, expected| Err(super::MarketError::Param { name, value, expected });
        let fractions = [
            ("half_spread", self.half_spread),
            ("slippage", self.slippage),
            ("impact", self.impact),
            ("taker_fee", self.taker_fee),
            ("maker_fee", self.maker_fee),
        ];
        for (name, value) in fractions {
            // A maker fee may be a rebate; nothing else is negative.
            let low = if name == "maker_fee" { -0.1 } else { 0.0 };
            if !(value.is_finite() && (low..=0.1).contains(&value)) {
                return err(
                    name,
                    value,
                    if low < 0.0 { "a fraction from -0.1 to 0.1" } else { "a fraction from 0 to 0.1" },
                );
            }
        }
        for (name, value) in [("financing", self.financing), ("borrow", self.borrow)] {
            if !(value.is_finite() && (0.0..=10.0).contains(&value)) {
                return err(name, value, "a yearly rate from 0 to 10 (0.05 is 5%)");
            }
        }
        if !(self.drawdown_penalty.is_finite() && self.drawdown_penalty >= 0.0) {
            return err("drawdown_penalty", self.drawdown_penalty, "a finite number, at least 0");
        }
        if !(0.0..1.0).contains(&self.ruin) {
            return err("ruin", self.ruin, "a fraction, 0 <= ruin < 1");
        }
        if !self.ruin_reward.is_finite() {
            return err("ruin_reward", self.ruin_reward, "a finite number");
        }
        for (name, value) in [("reward_scale", self.reward_scale), ("initial_equity", self.initial_equity)] {
            if !(value.is_finite() && value > 0.0) {
                return err(name, value, "a finite number above 0");
            }
        }
        if !(0.0..=1.0).contains(&self.gamma) {
            return err("gamma", self.gamma, "0 <= gamma <= 1");
        }
        if self.episode == 0 || self.episode > 1 << 30 {
            return err("episode", self.episode as f64, "1 to 2^30 steps");
        }
        Ok(())
    }

    /// The same costs for one pass over `part` to its last bar.
    pub fn backtest(&self, part: &super::Part) -> Self {
        Self { last_bar: part.last(), mode: Mode::Backtest, ..*self }
    }
}
