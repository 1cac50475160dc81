//! Hindsight on the CPU agent's ring: sample for sample what the kernel `her_relabel` does.

use gpu::task::hindsight::{Choice, newer, slot_ahead};
use gpu::task::{Environment, Outcome, Task, Visitor};

use crate::step::Hindsight;
use crate::train::replay::{Draw, HostReplay};

/// The environment's judgement of a state by a goal.
struct Judge<'a> {
    achieved: &'a [f32],
    desired: &'a [f32],
}

impl Visitor for Judge<'_> {
    type Out = Outcome;

    fn visit<E: Environment>(self, environment: &E) -> Outcome {
        environment.judge(|i| self.achieved[i as usize], |i| self.desired[i as usize])
    }
}

/// What a step into a state that achieves `achieved` gives when the goal is `desired`.
pub fn judge(task: Task, achieved: &[f32], desired: &[f32]) -> Outcome {
    task.visit(Judge { achieved, desired }).unwrap_or_default()
}

/// Gives samples of a draw another goal; `cursor` is the ring's next slot, `ends` the end bits of all steps.
pub(super) fn relabel(
    hindsight: &Hindsight,
    replay: &HostReplay,
    (cursor, ends): (usize, &[u32]),
    (seed, step): (u64, u64),
    draw: &mut Draw,
) {
    let (capacity, environments) = (ends.len() as u32, hindsight.environments as u32);
    let goal = hindsight.task.spec().goal;
    let width = draw.batch.states.len() / draw.slots.len();
    let achieved = |slot: u32| {
        &replay.next_states[slot as usize * width + goal.achieved as usize..][..goal.len as usize]
    };
    for (sample, &slot) in draw.slots.iter().enumerate() {
        let choice = Choice::new(seed, step, sample as u32, hindsight.share);
        if !choice.relabel {
            continue;
        }
        let ahead = |steps: u32| slot_ahead(slot as u32, steps, capacity, environments);
        let newest = newer(slot as u32, cursor as u32, capacity, environments);
        let later = (0..newest).find(|&steps| ends[ahead(steps) as usize] != 0).unwrap_or(newest);
        let desired = achieved(ahead(choice.ahead(later)));
        for rows in [&mut draw.batch.states, &mut draw.batch.next_states] {
            rows[sample * width + goal.desired as usize..][..desired.len()].copy_from_slice(desired);
        }
        let outcome = judge(hindsight.task, achieved(slot as u32), desired);
        draw.batch.rewards[sample] = outcome.reward as f32;
        draw.batch.discounts[sample] = if outcome.terminated { 0.0 } else { hindsight.gamma as f32 };
    }
}
