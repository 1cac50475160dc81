//! Bodies for the kernels that prune, and for steps with pruning.

use cuda_std::{Buf, Kernel};
use gpu::clock;
use gpu::kernels::prune::reference::{pruned, target};
use gpu::kernels::prune::{DIGITS, PruneApply, PruneBegin, PruneDigits, PruneTies, ROUNDS, WARPS};
use host::error::ExecError;
use host::step::{Matmul, record, record_pruning};
use settings::Pruning;

use super::check::same_bits;
use super::data::Random;
use super::oracle_step::{Beside, everything, odd};
use super::{Backend, Outcome, filled, launch, put};

/// Matrices in a buffer, with parameters that belong to none between them.
struct Problem {
    lens: Vec<usize>,
    firsts: Vec<usize>,
    table: Buf<u32>,
    targets: Buf<u32>,
    zeros: Buf<u32>,
    digits: Buf<u32>,
    words: Buf<u64>,
    /// Parameters, two moments, masks.
    state: [Buf<f32>; 4],
}

impl Problem {
    fn new<B: Backend>(b: &mut B, lens: &[usize], values: &[f32]) -> Result<Self, ExecError> {
        let firsts: Vec<usize> =
            lens.iter().scan(3, |at, len| Some(std::mem::replace(at, *at + len + 5))).collect();
        let table: Vec<u32> =
            firsts.iter().zip(lens).flat_map(|(&first, &len)| [first as u32, len as u32]).collect();
        let ones = vec![1.0f32; values.len()];
        Ok(Self {
            lens: lens.to_vec(),
            firsts,
            table: put(b, "table", &table)?,
            targets: filled(b, "targets", lens.len(), 77u32)?,
            zeros: filled(b, "zeros", lens.len(), 77u32)?,
            digits: filled(b, "digits", (ROUNDS * DIGITS) as usize * lens.len(), 77u32)?,
            words: filled(b, "clock", clock::WORDS as usize, 0u64)?,
            state: [
                put(b, "params", values)?,
                put(b, "m", &ones)?,
                put(b, "v", &ones)?,
                put(b, "mask", &ones)?,
            ],
        })
    }

    /// Floats that hold matrices of these lengths.
    fn len(lens: &[usize]) -> usize {
        3 + lens.iter().map(|len| len + 5).sum::<usize>()
    }

    /// Prunes as at a step of a schedule.
    fn prune<B: Backend>(&self, b: &mut B, settings: &Pruning, step: u64, blocks: u32) -> Outcome {
        b.upload(self.words, &[step, 0, 0, 0])?;
        let matrices = self.lens.len() as u32;
        let [params, m, v, mask] = self.state;
        let len = params.len() as u32;
        launch(
            b,
            PruneBegin {
                matrices,
                begin: settings.begin,
                end: settings.end,
                sparsity: settings.sparsity,
                table: self.table.into(),
                clock_words: self.words.into(),
                targets: self.targets.into(),
                zeros: self.zeros.into(),
                digits: self.digits.into(),
            },
        )?;
        for round in 0..ROUNDS {
            launch(
                b,
                PruneDigits {
                    blocks,
                    matrices,
                    round,
                    len,
                    table: self.table.into(),
                    targets: self.targets.into(),
                    params: params.into(),
                    mask: mask.into(),
                    digits: self.digits.into(),
                },
            )?;
        }
        let ties = filled(b, "ties", (matrices * blocks * WARPS) as usize, 77u32)?;
        launch(
            b,
            PruneTies {
                blocks,
                matrices,
                len,
                table: self.table.into(),
                targets: self.targets.into(),
                params: params.into(),
                mask: mask.into(),
                digits: self.digits.into(),
                ties: ties.into(),
            },
        )?;
        launch(
            b,
            PruneApply {
                blocks,
                matrices,
                len,
                table: self.table.into(),
                targets: self.targets.into(),
                digits: self.digits.into(),
                ties: ties.into(),
                params: params.into(),
                m: m.into(),
                v: v.into(),
                mask: mask.into(),
                zeros: self.zeros.into(),
            },
        )
    }
}

/// Prunes step after step and compares with sorting: values, moments and masks bit for bit, counts.
fn check<B: Backend>(
    b: &mut B,
    lens: &[usize],
    values: &[f32],
    settings: &Pruning,
    steps: &[u64],
    blocks: u32,
) -> Outcome {
    let problem = Problem::new(b, lens, values)?;
    let mut masks: Vec<Vec<bool>> = lens.iter().map(|&len| vec![false; len]).collect();
    for &step in steps {
        problem.prune(b, settings, step, blocks)?;
        let mut expected = [values.to_vec(), vec![1.0; values.len()]];
        let mut counts = Vec::new();
        for (i, mask) in masks.iter_mut().enumerate() {
            let (first, len) = (problem.firsts[i], lens[i]);
            let count = target(step, settings.begin, settings.end, settings.sparsity, len);
            assert_eq!(count, settings.zeros(step, len), "both sides' number at step {step}");
            *mask = pruned(&values[first..first + len], mask, count);
            for (j, _) in mask.iter().enumerate().filter(|(_, pruned)| **pruned) {
                expected.iter_mut().for_each(|values| values[first + j] = 0.0);
            }
            let zeros = mask.iter().filter(|&&pruned| pruned).count();
            if values[first..first + len].iter().all(|x| !x.is_nan()) {
                assert_eq!(zeros, count, "exactly as many as asked for");
            }
            counts.push(zeros as u32);
        }
        let [params, m, v, mask] = problem.state;
        same_bits("weights", &b.download(params)?, &expected[0]);
        for (what, buffer) in [("m", m), ("v", v), ("mask", mask)] {
            same_bits(what, &b.download(buffer)?, &expected[1]);
        }
        assert_eq!(b.download(problem.zeros)?, counts, "counts after step {step}");
    }
    Ok(())
}

/// Random weights, some of them of equal magnitude, over a whole schedule; the number of blocks changes nothing.
pub fn smallest_first<B: Backend>(b: &mut B) -> Outcome {
    let mut random = Random::new(161);
    let settings = Pruning { enabled: true, sparsity: 0.83, begin: 10, end: 50, every: 8 };
    let steps: Vec<u64> = (0..80).filter(|&step| settings.due(step)).collect();
    let mut shapes = vec![(vec![1, 7, 33, 256, 700], 1), (vec![513, 64, 2], 3)];
    if B::FULL_SIZE {
        shapes.push((vec![65_536, 20_480, 58_752, 6_528], 16));
    }
    for (lens, blocks) in shapes {
        let exact = random.normals(Problem::len(&lens), 0.3);
        let coarse: Vec<f32> = exact.iter().map(|x| (x * 16.0).round() / 16.0).collect();
        for values in [&exact, &coarse] {
            check(b, &lens, values, &settings, &steps, blocks)?;
            check(b, &lens, values, &settings, &steps[2..4], blocks + 1)?;
        }
    }
    Ok(())
}

/// Zeros of both signs, equal numbers, subnormal ones, infinities; a NaN is never pruned.
pub fn extreme_values<B: Backend>(b: &mut B) -> Outcome {
    let settings = Pruning { enabled: true, sparsity: 0.9, begin: 0, end: 4, every: 1 };
    let special = [0.0, -0.0, 1e-40, -1e-40, f32::INFINITY, f32::NEG_INFINITY, 1.0, -1.0, f32::MAX, f32::NAN];
    let lens = [60, 41];
    let len = Problem::len(&lens);
    let cycle: Vec<f32> = (0..len).map(|i| special[(7 * i + i / 9) % special.len()]).collect();
    for values in [cycle, vec![0.0; len], vec![-2.5; len], vec![f32::NAN; len]] {
        check(b, &lens, &values, &settings, &[0, 1, 2, 3, 4, 9], 2)?;
    }
    let problem = Problem::new(b, &[8], &[1.0; 16])?;
    let begin = PruneBegin {
        matrices: 1,
        begin: 5,
        end: 5,
        sparsity: 0.5,
        table: problem.table.into(),
        clock_words: problem.words.into(),
        targets: problem.targets.into(),
        zeros: problem.zeros.into(),
        digits: problem.digits.into(),
    };
    assert!(begin.check().is_err(), "a schedule without steps");
    Ok(())
}

/// Steps with pruning beside the oracle: the first mask is the oracle's, every mask has exactly as many zeros as the
/// schedule says and only grows, pruned weights and their moments stay exactly zero, the target's copies shrink by
/// 1 - tau a step, and the gradients and the state stay the oracle's.
pub fn steps<B: Backend>(b: &mut B) -> Outcome {
    let settings = Pruning { enabled: true, sparsity: 0.7, begin: 1, end: 5, every: 2 };
    let mut noisy = everything();
    noisy.model.noisy = true;
    for mut config in [odd(), noisy] {
        config.pruning = settings.clone();
        let mut beside = Beside::new(b, &config, Matmul::Rust)?;
        let (shape, s) = (beside.shape.clone(), beside.buffers);
        let matrices: Vec<settings::Tensor> = Pruning::matrices(&shape.layout).cloned().collect();
        let mut before = vec![1.0; shape.layout.len];
        for step in 0..8 {
            let target0 = b.download(s.parameters.target)?;
            if settings.due(step) {
                record_pruning(b, &shape, &s, Some(&beside.replay))?;
            } else {
                record(b, &shape, &s, Some(&beside.replay))?;
            }
            let batch = beside.batch(b)?;
            // Afterwards rounding may decide which of two weights of nearly equal magnitude is pruned.
            let same_mask = step < 5;
            if same_mask {
                beside.check_gradients(b, &batch)?;
            }
            beside.oracle.train_step(&batch).expect("a batch that fits");
            let mask = b.download(s.factors)?;
            let state = [s.parameters.online, s.parameters.m, s.parameters.v];
            let state = [b.download(state[0])?, b.download(state[1])?, b.download(state[2])?];
            let target = b.download(s.parameters.target)?;
            let zeros = b.download(s.pruning.expect("pruning is on").zeros)?;
            let oracle = beside.oracle.export();
            for (t, &counted) in matrices.iter().zip(&zeros) {
                let range = t.offset..t.offset + t.len();
                let mut count = 0;
                for i in range.clone() {
                    assert!(mask[i] == 1.0 || mask[i] == 0.0, "{} {i}: {}", t.name, mask[i]);
                    assert!(before[i] != 0.0 || mask[i] == 0.0, "{} {i}: a mask only grows", t.name);
                    if mask[i] == 0.0 {
                        count += 1;
                        for (what, values) in ["weight", "m", "v"].iter().zip(&state) {
                            assert_eq!(values[i].to_bits(), 0, "{what} of {} {i}", t.name);
                        }
                        let tau = config.optimizer.tau;
                        let shrunk = target0[i] * (1.0 - tau);
                        assert!((target[i] - shrunk).abs() <= 1e-6 * target0[i].abs(), "{} {i}", t.name);
                    }
                    if same_mask {
                        assert_eq!(mask[i] == 0.0, oracle.pruned[i], "{} {i} at step {step}", t.name);
                    }
                }
                let last = (0..=step).rev().find(|&step| settings.due(step));
                let expected = last.map_or(0, |step| settings.zeros(step, t.len()));
                assert_eq!((count, counted as usize), (expected, expected), "{} at step {step}", t.name);
            }
            for t in shape.layout.tensors.iter().filter(|t| t.name.ends_with(".bias")) {
                assert!(mask[t.offset..t.offset + t.len()].iter().all(|&m| m == 1.0), "{}", t.name);
            }
            before = mask;
            if step == 4 {
                beside.check_state(b, 5)?;
            }
        }
        let worn = before.iter().filter(|&&m| m == 0.0).count();
        assert!(worn > 0, "the schedule prunes");
        // What a policy holds: the masks alone, which come back and leave the noise's factors as they are.
        let (kept, factors) = (s.kept(b)?, b.download(s.factors)?);
        let is_matrix = |i: usize| matrices.iter().any(|t| (t.offset..t.offset + t.len()).contains(&i));
        let masks: Vec<f32> =
            (0..shape.layout.len).map(|i| if is_matrix(i) { before[i] } else { 1.0 }).collect();
        assert_eq!(kept.masks, masks);
        let mut other = kept.clone();
        other.masks[matrices[0].offset] = 1.0 - other.masks[matrices[0].offset];
        s.set_kept(b, &other)?;
        assert_eq!(s.kept(b)?, other);
        s.set_kept(b, &kept)?;
        assert_eq!(b.download(s.factors)?, factors);
    }
    Ok(())
}
