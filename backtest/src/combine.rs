//! One track out of several: folds one behind the other, symbols side by side.

use crate::trades::trades;
use crate::{Fill, Track, Trade};

impl Track {
    /// Closed trades, in the order in which they were closed. Those of a track that is made of several accounts are
    /// closed within their accounts: a fill never closes what another account holds.
    pub fn trades(&self) -> Vec<Trade> {
        let count = self.accounts.iter().max().map_or(0, |last| last + 1);
        if count <= 1 {
            return trades(&self.fills).0;
        }
        let mut fills: Vec<Vec<Fill>> = vec![Vec::new(); count];
        for (fill, &account) in self.fills.iter().zip(&self.accounts) {
            fills[account].push(*fill);
        }
        let mut closed: Vec<Trade> = fills.iter().flat_map(|fills| trades(fills).0).collect();
        closed.sort_by_key(|trade| trade.closed);
        closed
    }

    /// Tracks one behind the other, as if each began with the equity that the one before ended with: returns, exposures
    /// and ratios stay, money is scaled. The last position of each is left at the mark, as in the track alone. Behind a
    /// track that ended without equity nothing is traded any more.
    pub fn chained(tracks: &[Track]) -> Track {
        let Some(first) = tracks.first() else { return Track::default() };
        let mut all = Track { equity: first.equity[..1].to_vec(), ..Track::default() };
        let mut accounts = 0;
        for track in tracks {
            let (bar, equity) = (all.bars(), all.equity[all.equity.len() - 1]);
            if equity <= 0.0 {
                all.equity.resize(bar + track.bars() + 1, equity);
                all.exposure.resize(bar + track.bars(), 0.0);
                continue;
            }
            // One, exactly, for tracks that begin alike and for the first.
            let scale = equity / track.equity[0];
            all.equity.extend(track.equity[1..].iter().map(|equity| scale * equity));
            all.exposure.extend_from_slice(&track.exposure);
            all.fills.extend(track.fills.iter().map(|fill| Fill {
                bar: bar + fill.bar,
                quantity: scale * fill.quantity,
                fee: scale * fill.fee,
                ..*fill
            }));
            accounts += track.add_accounts(&mut all.accounts, accounts);
            all.fees += scale * track.fees;
            all.financing += scale * track.financing;
            all.borrow += scale * track.borrow;
        }
        all
    }

    /// Tracks of several symbols side by side, each with the times of its bars: a portfolio of equal weights at the
    /// start that is never balanced anew, which costs nothing that the symbols' accounts did not pay. Returns the times
    /// of the portfolio's bars, which are those of all symbols, and its track: the sums of the accounts, each of which
    /// stays at its last close where its symbol has no bar.
    ///
    /// # Panics
    /// If a track has not as many bars as times, or times do not increase.
    pub fn side_by_side(tracks: &[(&[i64], &Track)]) -> (Vec<i64>, Track) {
        let mut times: Vec<i64> = tracks.iter().flat_map(|(times, _)| times.iter().copied()).collect();
        times.sort_unstable();
        times.dedup();
        let mut all = Track {
            equity: vec![0.0; times.len() + 1],
            exposure: vec![0.0; times.len()],
            ..Track::default()
        };
        let (mut fills, mut accounts) = (Vec::new(), 0);
        for (own, track) in tracks {
            assert_eq!(own.len(), track.bars(), "one time for each bar");
            assert!(own.windows(2).all(|pair| pair[0] < pair[1]), "times increase");
            let mut done = 0;
            all.equity[0] += track.equity[0];
            for (bar, time) in times.iter().enumerate() {
                if own.get(done) == Some(time) {
                    done += 1;
                }
                all.equity[bar + 1] += track.equity[done];
                // Money at work first; the quotient is made below.
                if done > 0 {
                    all.exposure[bar] += track.exposure[done - 1] * track.equity[done];
                }
            }
            let mut of_fills = Vec::new();
            accounts += track.add_accounts(&mut of_fills, accounts);
            for (fill, account) in track.fills.iter().zip(of_fills) {
                let time = own[fill.bar - 1];
                fills.push((Fill { bar: times.partition_point(|&t| t < time) + 1, ..*fill }, account));
            }
            all.fees += track.fees;
            all.financing += track.financing;
            all.borrow += track.borrow;
        }
        for (exposure, equity) in all.exposure.iter_mut().zip(&all.equity[1..]) {
            *exposure = if *exposure == 0.0 { 0.0 } else { *exposure / equity };
        }
        fills.sort_by_key(|(fill, account)| (fill.bar, *account));
        (all.fills, all.accounts) = fills.into_iter().unzip();
        (times, all)
    }

    /// Appends the account of every fill, counted from `first`; returns how many accounts there are.
    fn add_accounts(&self, accounts: &mut Vec<usize>, first: usize) -> usize {
        if self.accounts.is_empty() {
            accounts.extend(std::iter::repeat_n(first, self.fills.len()));
            return 1;
        }
        accounts.extend(self.accounts.iter().map(|account| first + account));
        self.accounts.iter().max().map_or(1, |last| last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metrics;

    /// Buys `quantity` at `price` in the first bar and holds; closes as given, the first one before the first bar.
    fn holding(quantity: f64, price: f64, closes: &[f64]) -> Track {
        let cash = 1000.0 - quantity * price - 1.0;
        let equity = closes[1..].iter().map(|close| cash + quantity * close);
        let equity: Vec<f64> = std::iter::once(1000.0).chain(equity).collect();
        Track {
            exposure: equity[1..].iter().zip(&closes[1..]).map(|(e, close)| quantity * close / e).collect(),
            equity,
            fills: vec![Fill { bar: 1, quantity, price, fee: 1.0 }],
            fees: 1.0,
            ..Track::default()
        }
    }

    #[test]
    fn a_chain_has_the_returns_of_its_links() {
        let (a, b) = (holding(4.0, 100.0, &[100.0, 110.0, 121.0]), holding(-2.0, 50.0, &[50.0, 55.0]));
        let chain = Track::chained(&[a.clone(), b.clone()]);
        let returns = |track: &Track| crate::returns::simple_returns(&track.equity).unwrap();
        let expected = [returns(&a), returns(&b)].concat();
        for (got, expected) in returns(&chain).iter().zip(&expected) {
            assert!((got - expected).abs() < 4.0 * f64::EPSILON, "{got} {expected}");
        }
        assert_eq!(chain.exposure, [a.exposure.clone(), b.exposure.clone()].concat());
        assert_eq!(chain.bars(), 3);
        assert_eq!(chain.fills[1].bar, 3);
        // The second link's money, times the growth of the first.
        let growth = a.equity[2] / 1000.0;
        assert!((chain.fees - (1.0 + growth)).abs() < 1e-12);
        // The fills are against each other, but of different accounts: nothing was closed.
        assert_eq!(chain.trades(), []);
        assert_eq!(Track::chained(std::slice::from_ref(&a)).equity, a.equity);
        let whole = Metrics::new(&chain, None, 252.0).unwrap();
        assert_eq!((whole.fills, whole.trades), (2, 0));
    }

    #[test]
    fn nothing_is_traded_behind_ruin() {
        let mut ruined = holding(4.0, 100.0, &[100.0, 110.0]);
        ruined.equity[1] = -5.0;
        let chain = Track::chained(&[ruined, holding(1.0, 50.0, &[50.0, 55.0, 60.0])]);
        assert_eq!(chain.equity, [1000.0, -5.0, -5.0, -5.0]);
        assert_eq!((chain.fills.len(), &chain.exposure[1..]), (1, &[0.0, 0.0][..]));
    }

    #[test]
    fn a_portfolio_adds_up_to_the_cent() {
        let (a, b) = (holding(4.0, 100.0, &[100.0, 110.0, 121.0]), holding(-2.0, 50.0, &[50.0, 55.0, 45.0]));
        // The second symbol has no bar at time 20 and one more at 30.
        let (times, all) = Track::side_by_side(&[(&[10, 20], &a), (&[10, 30], &b)]);
        assert_eq!(times, [10, 20, 30]);
        let expected =
            [2000.0, a.equity[1] + b.equity[1], a.equity[2] + b.equity[1], a.equity[2] + b.equity[2]];
        assert_eq!(all.equity, expected);
        // Position value over equity: 4 * 121 - 2 * 55 at time 20.
        assert!((all.exposure[1] - (484.0 - 110.0) / expected[2]).abs() < 1e-15);
        assert_eq!((all.fees, all.accounts.as_slice()), (2.0, &[0, 1][..]));
        let metrics = Metrics::new(&all, None, 252.0).unwrap();
        assert_eq!((metrics.bars, metrics.fills, metrics.trades), (3, 2, 0));
        let (_, alone) = Track::side_by_side(&[(&[10, 20], &a)]);
        assert_eq!(alone.equity, a.equity);
    }

    #[test]
    fn accounts_close_their_own_trades() {
        let fill = |bar, quantity, price| Fill { bar, quantity, price, fee: 0.0 };
        let track =
            |fills| Track { equity: vec![100.0; 4], exposure: vec![0.0; 3], fills, ..Track::default() };
        let a = track(vec![fill(1, 1.0, 10.0), fill(3, -1.0, 12.0)]);
        let b = track(vec![fill(1, -1.0, 20.0), fill(2, 1.0, 15.0)]);
        let (_, all) = Track::side_by_side(&[(&[1, 2, 3], &a), (&[1, 2, 3], &b)]);
        let profits: Vec<f64> = all.trades().iter().map(|trade| trade.profit).collect();
        assert_eq!(profits, [5.0, 2.0]);
    }
}
