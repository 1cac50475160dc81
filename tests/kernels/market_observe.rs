//! Bodies for `market_observe`. That states and the ring's rows are those of the CPU environment over many steps is part
//! of the bodies of `market_step`.

use gpu::market::{BarSide, Part, VecMarket};

use super::check::same_bits;
use super::market::support::{Columns, params};
use super::market::{Collection, STATE, STRIDE, UNWRITTEN, state_row};
use super::{Backend, Outcome};

/// The first observation is the CPU environment's and leaves the ring alone; a second one changes nothing.
pub fn first_observation<B: Backend>(b: &mut B) -> Outcome {
    let columns = Columns::random(35, 90, 0.01);
    let table = columns.table_with(std::slice::from_ref(&(0..90)), BarSide::Mid);
    let part = Part::new(&table, 0..90).expect("a part of the table");
    for environments in [1, 8, 9, 45] {
        let device = Collection::new(b, (&params(), &table, &part), environments, 64, 0, 5)?;
        let market = VecMarket::new(params(), &table, &part, environments, 5).expect("parameters that work");
        let mut expected = vec![0.0; environments * STATE];
        market.observe(&mut expected).expect("room for the states");
        for _ in 0..2 {
            device.observe(b, 0)?;
            let got = b.download(device.states)?;
            for (e, expected) in expected.chunks(STATE).enumerate() {
                same_bits(&format!("environment {e} of {environments}"), state_row(&got, e), expected);
            }
        }
        for ring in [device.ring_states, device.ring_next_states] {
            same_bits("the ring", &b.download(ring)?, &[UNWRITTEN; 64 * STRIDE]);
        }
    }
    Ok(())
}
