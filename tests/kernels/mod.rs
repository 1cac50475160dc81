//! One test body per property of a kernel, the same for every back end.
//!
//! A body allocates, uploads, launches, downloads and compares with the kernel's f64 reference. The harnesses
//! (`tests/cpu`: emulator, several interleavings; `tests/device`: GPU) turn the list below into their tests, so that
//! what passes in the emulator is exactly what must pass on the device.

pub mod case;
pub mod check;
pub mod data;
pub mod golden;
#[path = "../../gpu/tests/machine/mod.rs"]
pub mod machine;
pub mod oracle_step;
#[path = "../../gpu/tests/common/random.rs"]
mod random;
pub mod rows;
pub mod tasks;

pub mod adam_cases;
pub mod adam_ema;
pub mod adam_groups;
pub mod attention;
pub mod bias_lrelu;
pub mod c51_cases;
pub mod c51_loss;
pub mod confidence_loss;
pub mod copies_step;
pub mod cql_loss;
pub mod dueling_q;
pub mod ensemble_loss;
pub mod exploration_bonus;
pub mod feedback_step;
pub mod gemm;
pub mod glu;
pub mod golden_full;
pub mod golden_step;
pub mod gradient_norm;
pub mod halve;
pub mod her_relabel;
pub mod iql_derive;
pub mod iql_loss;
pub mod iqn;
pub mod learner_signals;
pub mod mamba;
pub mod mamba_step;
pub mod market;
pub mod market_count;
pub mod market_observe;
pub mod market_step;
pub mod n_step;
pub mod noisy;
pub mod noisy_step;
pub mod offline;
pub mod philox_fill;
pub mod priority_sample;
pub mod priority_tree;
pub mod probe;
pub mod prune;
pub mod regression;
pub mod replay_step;
pub mod sample_gather;
pub mod select_action;
pub mod spectral_norm;
pub mod step_signals;
pub mod stored;
pub mod symbols_step;
pub mod taken_q;
pub mod task_run;
pub mod task_step;
pub mod term_reduce;
pub mod update_scales;
pub mod vaccine;

use cuda_std::Buf;
use host::error::ExecError;
use host::exec::{Element, Exec, Lane, Memory};
use host::step::Matmul;

/// A back end that kernels can be tested on.
pub trait Backend: Exec + Memory {
    /// Whether it is fast enough for training-sized shapes.
    const FULL_SIZE: bool;
    /// Whether bodies of whole steps run on cuBLASLt's products too.
    const LIBRARY: bool = true;
}

/// Products that a whole step is tested with.
pub fn matmuls<B: Backend>() -> &'static [Matmul] {
    if B::LIBRARY { &[Matmul::Rust, Matmul::CublasLt] } else { &[Matmul::Rust] }
}

/// What a body returns; comparisons panic, so an error is always of the back end.
pub type Outcome = Result<(), ExecError>;

/// Calls a harness macro with every body: `stem { body, .. }`.
#[macro_export]
macro_rules! for_each_body {
    ($harness:ident) => {
        $harness! {
            adam_ema { one_step, schedule, skips_and_recovers, leaves_the_rest_alone, is_reproducible }
            adam_cases {
                c36_eps_outside_the_root, c38_one_global_norm, c40_average_in_f32, c46_lr_between_launches,
                c48_resume
            }
            adam_groups { three_updates, any_group_skips_all }
            attention {
                default_window, one_bar, long_window, odd_sizes, wide_trunk, many_rows, tensor_cores, closed_gate, large_scores, nan_shows,
                reproducible, golden_steps
            }
            bias_lrelu { forward, backward, bias_gradient }
            c51_loss {
                random_batches, identity_is_never_clipped, clips_at_both_ends, ties_take_the_lowest_action,
                non_finite_reward_shows, nan_outputs_show, contract
            }
            c51_cases { c02_integer_positions, c04_clipping, c06_extreme_logits, c08_branches_and_weights }
            confidence_loss { random_batches, state_over_steps }
            copies_step { plain_heads, all_parts, without_attention }
            cql_loss { random_batches, large_values_do_not_overflow, nan_shows }
            dueling_q { expected_values, log_probabilities, extreme_logits, c10_mean_per_atom }
            ensemble_loss { random_batches, nan_shows }
            exploration_bonus { random_states, nan_shows, collection }
            feedback_step { values_feed_back, auxiliary_heads, everything }
            gemm {
                nt_fp32, nn_fp32, tn_fp32, nt_tf32, nn_tf32, tn_tf32, nt_bf16, nn_bf16, tn_bf16,
                nt_bf16_group, nn_bf16_group, tn_bf16_group
            }
            golden_full { rust_products, library_products }
            glu { forward_and_backward, nan_shows }
            golden_step { rust_products, library_products, clipped }
            gradient_norm { whole_gradient, split_gradient, factors, non_finite_shows }
            halve { rounded, halved_gradients }
            her_relabel { c30_future_goals, random_episodes, contract }
            iql_derive { random_batches, extremes, quantiles_by_rank, averages_over_steps }
            iql_loss { random_batches }
            iqn { fp32, tf32, bf16, bf16_groups, fp16_groups }
            learner_signals { means_norms_and_counters }
            mamba {
                default_sizes, one_bar, long_window, odd_sizes, wide_block, fewer_taps, many_rows, closed_gate, fast_and_slow,
                nan_shows, reproducible
            }
            mamba_step { windows, with_all_parts, library_products, closed_gate, collection }
            market_count { turns_of_the_ring, contract }
            market_observe { first_observation }
            market_step { truncated_episodes, ruined_accounts, backtest_log, several_symbols }
            stored { nt, nn, tn }
            symbols_step { one_graph_walks_every_symbol }
            noisy { drawn_factors, moments, streams_are_independent, noisy_weights, c32_noisy_layer }
            noisy_step { rust_products, library_products, schedules, without_sigma, reproducible, acting }
            offline { uniform, prioritized, shards }
            philox_fill { uniform_bits, bernoulli_bits, normal_values, moments, steps_differ }
            probe { permutation, differences, whole_probe }
            prune { smallest_first, extreme_values, steps }
            n_step { random_episodes, contract }
            priority_sample {
                slots_and_rows, no_empty_slot, edges_of_the_total, a_draw_on_an_edge, weights, no_total_shows,
                c20_zero_leaves, c22_two_leaves_left
            }
            priority_tree { updates, skipped_steps, insertion, c24_duplicates_and_eps }
            regression { barrier, shuffle }
            replay_step { prioritized_n_step, all_parts, a_skipped_step_keeps_its_priorities, uniform_n_step }
            sample_gather { indices_and_rows, uniform_frequencies, part_of_the_ring, without_the_newest, contract }
            select_action { as_the_reference, greedy_and_ties, frequencies }
            spectral_norm {
                random_matrices, a_matrix_within_the_bound_keeps_its_bits, zero_gives_sigma_zero_and_keeps_u,
                what_is_not_finite_shows_and_changes_nothing, c42_power_iteration, golden_steps
            }
            step_signals { means_and_counters, history_wraps, counts_skipped_steps }
            taken_q { random_rows }
            task_run { bit_flip_with_hindsight, cart_pole_n_step, acrobot_prioritized }
            task_step {
                gymnasium_cart_pole, gymnasium_acrobot, gymnasium_mountain_car, equations_of_motion, bit_flip_rule, as_the_cpu,
                starts, contract
            }
            term_reduce { terms, groups }
            update_scales { norms_budgets_and_clips, schedule }
            vaccine { projection, extremes, whole_step }
        }
    };
}

/// A buffer with these values.
pub fn put<B: Backend, T: Element>(b: &mut B, label: &str, values: &[T]) -> Result<Buf<T>, ExecError> {
    let buffer = b.alloc(label, values.len())?;
    b.upload(buffer, values)?;
    Ok(buffer)
}

/// A buffer whose every element is `value`: what a kernel must overwrite, or leave alone.
pub fn filled<B: Backend, T: Element>(
    b: &mut B,
    label: &str,
    len: usize,
    value: T,
) -> Result<Buf<T>, ExecError> {
    put(b, label, &vec![value; len])
}

/// Launches on the main lane.
pub fn launch<B: Backend, K: cuda_std::Kernel>(b: &mut B, kernel: K) -> Outcome {
    b.launch(Lane::MAIN, &kernel)
}

/// The bodies of the `gpu` crate's own tests, which know kernels and buffers only.
impl<B: Backend> machine::Machine for B {
    type Error = ExecError;

    fn put(&mut self, values: &[f32]) -> Result<Buf<f32>, ExecError> {
        put(self, "operand", values)
    }

    fn get(&mut self, buffer: Buf<f32>) -> Result<Vec<f32>, ExecError> {
        self.download(buffer)
    }

    fn launch<K: cuda_std::Kernel>(&mut self, kernel: K) -> Outcome {
        launch(self, kernel)
    }
}
