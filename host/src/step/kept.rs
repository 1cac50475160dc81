//! What the value networks, the confidence head and the pruning keep from step to step, as a checkpoint holds it: the same
//! words in the same order on both devices (`cpu_path::LearnerState`).

use gpu::kernels::confidence_loss::state as head;
use gpu::kernels::iql_derive::state as values;
use serde::{Deserialize, Serialize};

use crate::error::ExecError;
use crate::exec::Memory;
use crate::step::buffers::StepBuffers;

/// Words of all; empty where a part is off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Averages of the gap and of |V_high|, 1 once they have started, epsilon, v_min, v_max.
    pub iql: Vec<f32>,
    /// Median and mean of td, 1 once they have started, the signals.
    pub confidence: Vec<f32>,
    /// Of every float of the main network's flat layout 0 where it is pruned and 1 elsewhere.
    pub masks: Vec<f32>,
}

impl StepBuffers {
    /// Copies what is kept to the host.
    pub fn kept(&self, memory: &mut impl Memory) -> Result<Kept, ExecError> {
        let mut kept = Kept { masks: self.masks(memory)?, ..Kept::default() };
        let Some(parts) = &self.parts else { return Ok(kept) };
        if let Some(iql) = &parts.iql {
            let averages = memory.download(iql.averages)?;
            kept.iql.extend([values::GAP, values::SIZE, values::STARTED].map(|w| averages[w as usize]));
            kept.iql.extend(memory.download(iql.epsilon)?);
            kept.iql.extend(memory.download(self.support)?);
        }
        if let Some(confidence) = parts.auxiliary.and_then(|auxiliary| auxiliary.confidence) {
            let words = memory.download(confidence.kept)?;
            kept.confidence.extend([head::MEDIAN, head::MEAN, head::STARTED].map(|w| words[w as usize]));
            kept.confidence.extend(&words[head::SIGNAL as usize..]);
        }
        Ok(kept)
    }

    /// Goes on from what was kept; empty words leave what is there.
    pub fn set_kept(&self, memory: &mut impl Memory, kept: &Kept) -> Result<(), ExecError> {
        self.set_masks(memory, &kept.masks)?;
        let Some(parts) = &self.parts else { return Ok(()) };
        if let (Some(iql), &[gap, size, started, epsilon, low, high]) = (&parts.iql, &kept.iql[..]) {
            let mut averages = [0.0f32; values::WORDS as usize];
            averages[values::GAP as usize] = gap;
            averages[values::SIZE as usize] = size;
            averages[values::STARTED as usize] = started;
            memory.upload(iql.averages, &averages)?;
            memory.upload(iql.epsilon, &[epsilon])?;
            memory.upload(self.support, &[low, high])?;
        }
        let confidence = parts.auxiliary.and_then(|auxiliary| auxiliary.confidence);
        if let (Some(confidence), [median, mean, started, signals @ ..]) = (confidence, &kept.confidence[..])
            && signals.len() == head::SIGNALS as usize
        {
            let mut words = [0.0f32; head::WORDS as usize];
            words[head::MEDIAN as usize] = *median;
            words[head::MEAN as usize] = *mean;
            words[head::STARTED as usize] = *started;
            words[head::SIGNAL as usize..].copy_from_slice(signals);
            memory.upload(confidence.kept, &words)?;
        }
        Ok(())
    }
}
