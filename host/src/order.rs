//! What the lanes of a step promise about order, and two checks on it.
//!
//! Every lane carries a vector clock: how much of every lane's work has certainly happened before whatever the
//! lane does next. `after` merges clocks. From them follow the rules of a capture ([`Forks`]: no lane without a
//! fork from the main lane, none left unjoined) and the search for conflicting uses of memory that no `after`
//! orders ([`History`]). On the GPU such a conflict would be a race that shows up in one replay of a thousand.

use crate::error::{ExecError, Unordered};
use crate::exec::Lane;
use crate::extent::Extent;

/// One vector clock per lane: `clocks[l][o]` operations of lane o happen before the next one of lane l.
#[derive(Clone, Debug)]
pub struct Clocks {
    clocks: [[u64; Lane::COUNT]; Lane::COUNT],
}

impl Default for Clocks {
    fn default() -> Self {
        Self { clocks: [[0; Lane::COUNT]; Lane::COUNT] }
    }
}

impl Clocks {
    /// Counts one operation on a lane and returns its number there.
    fn issue(&mut self, lane: usize) -> u64 {
        self.clocks[lane][lane] += 1;
        self.clocks[lane][lane]
    }

    /// Everything `on` has done or knows happens before what `lane` does next.
    fn after(&mut self, lane: usize, on: usize) {
        let other = self.clocks[on];
        for (known, count) in self.clocks[lane].iter_mut().zip(other) {
            *known = (*known).max(count);
        }
    }

    /// Whether operation `number` of lane `of` happens before what `lane` does next.
    fn knows(&self, lane: usize, of: usize, number: u64) -> bool {
        self.clocks[lane][of] >= number
    }

    /// The host waited for everything: every lane knows everything.
    fn barrier(&mut self) {
        let done: [u64; Lane::COUNT] = std::array::from_fn(|lane| self.clocks[lane][lane]);
        self.clocks = [done; Lane::COUNT];
    }
}

/// Rules of one capture: work starts on the main lane, every other lane forks from it and joins it at the end.
#[derive(Clone, Debug)]
pub struct Forks {
    clocks: Clocks,
    reached: [bool; Lane::COUNT],
}

impl Default for Forks {
    fn default() -> Self {
        let mut reached = [false; Lane::COUNT];
        reached[0] = true;
        Self { clocks: Clocks::default(), reached }
    }
}

impl Forks {
    /// Notes work on a lane; an error if nothing leads from the main lane to it (a stream that is not part of
    /// the capture would run the launch at once instead of recording it).
    pub fn issue(&mut self, lane: Lane, label: &str) -> Result<(), ExecError> {
        let index = lane.index()?;
        if !self.reached[index] {
            return Err(ExecError::NotForked { label: label.to_owned(), lane });
        }
        self.clocks.issue(index);
        Ok(())
    }

    /// Notes that `lane` waits for `on`, which must be part of the capture.
    pub fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        let (to, from) = (lane.index()?, on.index()?);
        if !self.reached[from] {
            return Err(ExecError::NotForked { label: format!("after({lane}, {on})"), lane: on });
        }
        self.clocks.after(to, from);
        // A lane that only waited is part of the capture too and has to be joined.
        self.clocks.issue(to);
        self.reached[to] = true;
        Ok(())
    }

    /// At the end the main lane has to know all work.
    pub fn finish(&self) -> Result<(), ExecError> {
        let lanes: Vec<Lane> = (0..Lane::COUNT)
            .filter(|&lane| !self.clocks.knows(0, lane, self.clocks.clocks[lane][lane]))
            .map(|lane| Lane(lane as u8))
            .collect();
        if lanes.is_empty() { Ok(()) } else { Err(ExecError::Unjoined { lanes }) }
    }
}

/// One use of memory by a kernel or product.
#[derive(Clone, Copy, Debug)]
pub struct Use<'a> {
    /// The bytes.
    pub extent: Extent,
    /// Whether they are written.
    pub writes: bool,
    /// Label of the buffer.
    pub buffer: &'a str,
}

#[derive(Clone, Debug)]
struct Past {
    extent: Extent,
    writes: bool,
    user: String,
    lane: usize,
    number: u64,
}

/// Uses of memory so far, and the clocks that order them.
#[derive(Clone, Debug, Default)]
pub struct History {
    clocks: Clocks,
    past: Vec<Past>,
}

impl History {
    /// `lane` waits for everything issued on `on` so far.
    pub fn after(&mut self, lane: Lane, on: Lane) -> Result<(), ExecError> {
        self.clocks.after(lane.index()?, on.index()?);
        Ok(())
    }

    /// The host waited for all lanes.
    pub fn barrier(&mut self) {
        self.clocks.barrier();
        self.past.clear();
    }

    /// Notes one operation and the memory it uses; an error if some earlier operation on another lane uses the
    /// same bytes, one of the two writes, and no chain of `after` orders them.
    pub fn issue(&mut self, lane: Lane, user: &str, uses: &[Use<'_>]) -> Result<(), ExecError> {
        let index = lane.index()?;
        for new in uses {
            let conflict = self.past.iter().find(|past| {
                (past.writes || new.writes)
                    && !self.clocks.knows(index, past.lane, past.number)
                    && past.extent.overlaps(&new.extent)
            });
            if let Some(past) = conflict {
                return Err(ExecError::from(Box::new(Unordered {
                    buffer: new.buffer.to_owned(),
                    first: past.user.clone(),
                    first_lane: Lane(past.lane as u8),
                    first_writes: past.writes,
                    second: user.to_owned(),
                    second_lane: lane,
                    second_writes: new.writes,
                })));
            }
        }
        // An earlier use needs no memory of its own once a new one covers its bytes, happens after it and
        // conflicts with at least as much: whoever is unordered with the old one is unordered with the new one.
        self.past.retain(|past| {
            let ordered = self.clocks.knows(index, past.lane, past.number);
            !(ordered
                && uses.iter().any(|new| (new.writes || !past.writes) && new.extent.covers(&past.extent)))
        });
        let number = self.clocks.issue(index);
        self.past.extend(uses.iter().map(|new| Past {
            extent: new.extent,
            writes: new.writes,
            user: user.to_owned(),
            lane: index,
            number,
        }));
        Ok(())
    }

    /// Uses that are still remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.past.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Lane = Lane::MAIN;
    const B: Lane = Lane::GRADIENT;
    const C: Lane = Lane::TARGET;

    fn touch(start: u64, bytes: u64, writes: bool) -> Use<'static> {
        Use { extent: Extent::contiguous(start, bytes), writes, buffer: "x" }
    }

    fn unordered(result: Result<(), ExecError>) -> Unordered {
        match result {
            Err(ExecError::Unordered(error)) => *error,
            other => panic!("expected an unordered use, got {other:?}"),
        }
    }

    #[test]
    fn a_read_of_another_lanes_write_needs_an_after() {
        let mut history = History::default();
        history.issue(A, "writer", &[touch(0, 64, true)]).unwrap();
        let error = unordered(history.issue(B, "reader", &[touch(60, 8, false)]));
        assert_eq!((error.first.as_str(), error.first_lane, error.first_writes), ("writer", A, true));
        assert_eq!((error.second.as_str(), error.second_lane, error.second_writes), ("reader", B, false));
        assert_eq!(error.buffer, "x");

        let mut history = History::default();
        history.issue(A, "writer", &[touch(0, 64, true)]).unwrap();
        history.after(B, A).unwrap();
        history.issue(B, "reader", &[touch(60, 8, false)]).unwrap();
    }

    #[test]
    fn a_write_after_another_lanes_read_needs_one_too() {
        let mut history = History::default();
        history.issue(A, "reader", &[touch(0, 64, false)]).unwrap();
        assert!(!unordered(history.issue(B, "writer", &[touch(0, 4, true)])).first_writes);
        let mut history = History::default();
        history.issue(A, "first", &[touch(0, 64, true)]).unwrap();
        assert!(unordered(history.issue(B, "second", &[touch(0, 4, true)])).second_writes);
    }

    #[test]
    fn reads_and_disjoint_writes_are_free() {
        let mut history = History::default();
        history.issue(A, "a", &[touch(0, 64, false), touch(100, 10, true)]).unwrap();
        history.issue(B, "b", &[touch(0, 64, false), touch(110, 10, true)]).unwrap();
    }

    #[test]
    fn order_is_transitive_and_covers_only_what_was_issued_before() {
        let mut history = History::default();
        history.issue(A, "first", &[touch(0, 8, true)]).unwrap();
        history.after(B, A).unwrap();
        history.after(C, B).unwrap();
        history.issue(C, "reader", &[touch(0, 8, false)]).unwrap();
        // A's second write comes after the fork: B does not know it.
        history.after(A, C).unwrap();
        history.issue(A, "second", &[touch(0, 8, true)]).unwrap();
        assert_eq!(unordered(history.issue(B, "late", &[touch(0, 8, false)])).first, "second");
    }

    #[test]
    fn a_host_wait_orders_everything() {
        let mut history = History::default();
        history.issue(A, "writer", &[touch(0, 8, true)]).unwrap();
        history.barrier();
        history.issue(B, "reader", &[touch(0, 8, false)]).unwrap();
    }

    #[test]
    fn forgetting_covered_uses_keeps_every_conflict() {
        // A read covers an ordered write: the write must stay, or B's read would go unnoticed.
        let mut history = History::default();
        history.issue(A, "writer", &[touch(0, 8, true)]).unwrap();
        history.issue(A, "reader", &[touch(0, 8, false)]).unwrap();
        assert_eq!(unordered(history.issue(B, "other", &[touch(0, 8, false)])).first, "writer");
    }

    #[test]
    fn the_history_of_a_repeated_step_does_not_grow() {
        let mut history = History::default();
        let step = |history: &mut History| {
            history.issue(A, "gather", &[touch(0, 64, true)]).unwrap();
            history.after(B, A).unwrap();
            history.issue(A, "one", &[touch(0, 64, false), touch(64, 64, true)]).unwrap();
            history.issue(B, "two", &[touch(0, 64, false), touch(128, 64, true)]).unwrap();
            history.after(A, B).unwrap();
            history.issue(A, "end", &[touch(64, 128, false)]).unwrap();
            history.len()
        };
        let lengths: Vec<usize> = (0..5).map(|_| step(&mut history)).collect();
        assert_eq!(lengths[1..], [lengths[1]; 4]);
    }

    #[test]
    fn a_capture_wants_every_lane_forked_and_joined() {
        let mut forks = Forks::default();
        assert!(matches!(forks.issue(B, "k"), Err(ExecError::NotForked { lane, .. }) if lane == B));
        assert!(matches!(forks.after(A, B), Err(ExecError::NotForked { lane, .. }) if lane == B));
        forks.issue(A, "k").unwrap();
        forks.after(B, A).unwrap();
        forks.issue(B, "k").unwrap();
        forks.after(C, B).unwrap();
        match forks.finish() {
            Err(ExecError::Unjoined { lanes }) => assert_eq!(lanes, [C, B], "in lane order"),
            other => panic!("{other:?}"),
        }
        forks.after(A, C).unwrap();
        forks.finish().unwrap();
        forks.issue(B, "k").unwrap();
        assert!(forks.finish().is_err(), "B worked again after the join");
        assert!(matches!(forks.issue(Lane(Lane::COUNT as u8), "k"), Err(ExecError::NoSuchLane { .. })));
    }
}
