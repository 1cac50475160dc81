//! Bodies for `market_count`.

use gpu::clock;
use gpu::kernels::market_count::MarketCount;
use gpu::kernels::sample_gather::ring;
use host::error::ExecError;

use super::{Backend, Outcome, launch, put};

/// cursor = written mod capacity, size = min(written, capacity), over several turns of the ring; other counters stay.
pub fn turns_of_the_ring<B: Backend>(b: &mut B) -> Outcome {
    for (inserted, capacity) in [(1u64, 1u64), (3, 8), (5, 5), (7, 30), (4096, 10_000), (1 << 20, 1 << 30)] {
        let mut clocks = vec![77u64; clock::WORDS as usize];
        clocks[clock::COLLECT as usize] = 0;
        let clock_words = put(b, "clock", &clocks)?;
        let ring_words = put(b, "ring", &[0u64; ring::WORDS as usize])?;
        for step in 1..=20 {
            let (inserted, capacity) = (inserted as u32, capacity as u32);
            let (ring_words, clock_words) = (ring_words.into(), clock_words.into());
            launch(b, MarketCount { inserted, capacity, ring_words, clock_words })?;
            clocks[clock::COLLECT as usize] = step;
        }
        let written = 20 * inserted;
        let words = b.download(ring_words)?;
        assert_eq!(words[ring::SIZE as usize], written.min(capacity), "{inserted} of {capacity}: size");
        assert_eq!(words[ring::CURSOR as usize], written % capacity, "{inserted} of {capacity}: cursor");
        assert_eq!(b.download(clock_words)?, clocks, "{inserted} of {capacity}: counters");
    }
    Ok(())
}

/// More transitions than slots are refused: one would overwrite another of the same step.
pub fn contract<B: Backend>(b: &mut B) -> Outcome {
    let clock_words = put(b, "clock", &[0u64; clock::WORDS as usize])?.into();
    let ring_words = put(b, "ring", &[0u64; ring::WORDS as usize])?.into();
    match launch(b, MarketCount { inserted: 9, capacity: 8, ring_words, clock_words }) {
        Err(ExecError::Contract(error)) => {
            assert!(error.to_string().contains("inserted <= capacity"), "{error}");
            Ok(())
        }
        Err(other) => Err(other),
        Ok(()) => panic!("nine transitions were written into eight slots"),
    }
}
