//! One module per kernel: its mathematics, its declaration, its body; beside it, `reference.rs` with the same
//! formula in f64 loops. `KERNELS` lists every declaration: the build compares it with the PTX entries both ways.

pub mod adam_ema;
pub mod adam_groups;
pub mod attention;
pub mod bias_lrelu;
pub mod c51_loss;
pub mod confidence_loss;
pub mod cql_loss;
pub mod distribution;
pub mod dueling_q;
pub mod ensemble_loss;
pub mod exploration_bonus;
pub mod gemm;
pub mod glu;
pub mod gradient_norm;
pub mod halve;
pub mod her_relabel;
pub mod iql_derive;
pub mod iql_loss;
pub mod iqn;
pub mod learner_signals;
pub mod mamba;
pub mod market_count;
pub mod market_observe;
pub mod market_step;
pub mod n_step;
pub mod noisy;
pub mod octets;
pub mod philox_fill;
pub mod priority;
pub mod priority_sample;
pub mod priority_tree;
pub mod probe;
pub mod prune;
pub mod regression;
pub mod sample_gather;
pub mod select_action;
pub mod spectral_norm;
pub mod step_signals;
pub mod taken_q;
pub mod task_step;
pub mod term_reduce;
pub mod update_scales;
pub mod vaccine;

#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::{Kernel, KernelDecl};

/// Every kernel of the crate.
#[cfg(not(target_arch = "nvptx64"))]
pub const KERNELS: &[&KernelDecl] = &[
    &adam_ema::AdamEma::DECL,
    &adam_groups::AdamGroups::DECL,
    &attention::AttentionApply::DECL,
    &attention::AttentionApplyTf32::DECL,
    &attention::AttentionContext::DECL,
    &attention::AttentionContextBackward::DECL,
    &attention::AttentionFoldHeads::DECL,
    &attention::AttentionFoldProjections::DECL,
    &attention::AttentionReduce::DECL,
    &attention::AttentionUnfoldHeads::DECL,
    &attention::AttentionUnfoldWeights::DECL,
    &bias_lrelu::BiasGradient::DECL,
    &bias_lrelu::BiasLrelu::DECL,
    &bias_lrelu::LreluBackward::DECL,
    &c51_loss::C51Loss::DECL,
    &c51_loss::C51LossWide::DECL,
    &confidence_loss::ConfidenceLoss::DECL,
    &confidence_loss::ConfidenceReduce::DECL,
    &confidence_loss::ConfidenceState::DECL,
    &cql_loss::CqlLoss::DECL,
    &cql_loss::CqlLossWide::DECL,
    &dueling_q::DuelingLogP::DECL,
    &dueling_q::DuelingLogPWide::DECL,
    &dueling_q::DuelingQ::DECL,
    &dueling_q::DuelingQWide::DECL,
    &ensemble_loss::EnsembleLoss::DECL,
    &ensemble_loss::EnsembleLossWide::DECL,
    &exploration_bonus::ExplorationBonus::DECL,
    &exploration_bonus::ExplorationBonusWide::DECL,
    &gemm::GemmNnBf16Huge::DECL,
    &gemm::GemmNnBf16Large::DECL,
    &gemm::GemmNnBf16Medium::DECL,
    &gemm::GemmNnBf16Small::DECL,
    &gemm::GemmNnFp32Huge::DECL,
    &gemm::GemmNnFp32Large::DECL,
    &gemm::GemmNnFp32Medium::DECL,
    &gemm::GemmNnFp32Small::DECL,
    &gemm::GemmNnTf32Huge::DECL,
    &gemm::GemmNnTf32Large::DECL,
    &gemm::GemmNnTf32Medium::DECL,
    &gemm::GemmNnTf32Small::DECL,
    &gemm::GemmNtBf16Group::DECL,
    &gemm::GemmNnBf16Group::DECL,
    &gemm::GemmTnBf16Group::DECL,
    &gemm::GemmNtBf16Stored::DECL,
    &gemm::GemmNnBf16Stored::DECL,
    &gemm::GemmTnBf16Stored::DECL,
    &gemm::GemmNtBf16Huge::DECL,
    &gemm::GemmNtBf16Large::DECL,
    &gemm::GemmNtBf16Medium::DECL,
    &gemm::GemmNtBf16Small::DECL,
    &gemm::GemmNtFp32Huge::DECL,
    &gemm::GemmNtFp32Large::DECL,
    &gemm::GemmNtFp32Medium::DECL,
    &gemm::GemmNtFp32Small::DECL,
    &gemm::GemmNtTf32Huge::DECL,
    &gemm::GemmNtTf32Large::DECL,
    &gemm::GemmNtTf32Medium::DECL,
    &gemm::GemmNtTf32Small::DECL,
    &gemm::GemmTnBf16Huge::DECL,
    &gemm::GemmTnBf16Large::DECL,
    &gemm::GemmTnBf16Medium::DECL,
    &gemm::GemmTnBf16Small::DECL,
    &gemm::GemmTnFp32Huge::DECL,
    &gemm::GemmTnFp32Large::DECL,
    &gemm::GemmTnFp32Medium::DECL,
    &gemm::GemmTnFp32Small::DECL,
    &gemm::GemmTnTf32Huge::DECL,
    &gemm::GemmTnTf32Large::DECL,
    &gemm::GemmTnTf32Medium::DECL,
    &gemm::GemmTnTf32Small::DECL,
    &glu::GluBackward::DECL,
    &glu::GluBackwardHalves::DECL,
    &glu::GluForward::DECL,
    &gradient_norm::GradientNorm::DECL,
    &gradient_norm::GradientReduce::DECL,
    &halve::Halve::DECL,
    &halve::HalveLrelu::DECL,
    &her_relabel::HerRelabel::DECL,
    &iql_derive::IqlDerive::DECL,
    &iql_derive::IqlQuantiles::DECL,
    &iql_derive::IqlState::DECL,
    &iql_loss::IqlLoss::DECL,
    &learner_signals::LearnerSignals::DECL,
    &iqn::IqnLossBf16GroupMedium::DECL,
    &iqn::IqnLossBf16GroupSmall::DECL,
    &iqn::IqnChunksBf16Small::DECL,
    &iqn::IqnChunksBf16Medium::DECL,
    &iqn::IqnChunksFp16Small::DECL,
    &iqn::IqnChunksFp16Medium::DECL,
    &iqn::IqnLossBf16Large::DECL,
    &iqn::IqnLossBf16Medium::DECL,
    &iqn::IqnLossBf16Small::DECL,
    &iqn::IqnLossFp16GroupMedium::DECL,
    &iqn::IqnLossFp16GroupSmall::DECL,
    &iqn::IqnLossFp32Large::DECL,
    &iqn::IqnLossFp32Medium::DECL,
    &iqn::IqnLossFp32Small::DECL,
    &iqn::IqnLossTf32Large::DECL,
    &iqn::IqnLossTf32Medium::DECL,
    &iqn::IqnLossTf32Small::DECL,
    &iqn::IqnPackFp16Medium::DECL,
    &iqn::IqnPackFp16Small::DECL,
    &iqn::IqnPackHalfLarge::DECL,
    &iqn::IqnPackHalfMedium::DECL,
    &iqn::IqnPackHalfSmall::DECL,
    &iqn::IqnPackLarge::DECL,
    &iqn::IqnPackMedium::DECL,
    &iqn::IqnPackSmall::DECL,
    &iqn::IqnReduceGroupMedium::DECL,
    &iqn::IqnReduceGroupSmall::DECL,
    &iqn::IqnReduceHalfLarge::DECL,
    &iqn::IqnReduceHalfMedium::DECL,
    &iqn::IqnReduceHalfSmall::DECL,
    &iqn::IqnReduceLarge::DECL,
    &iqn::IqnReduceMedium::DECL,
    &iqn::IqnReduceSmall::DECL,
    &iqn::IqnTargetBf16GroupMedium::DECL,
    &iqn::IqnTargetBf16GroupSmall::DECL,
    &iqn::IqnTargetBf16Large::DECL,
    &iqn::IqnTargetBf16Medium::DECL,
    &iqn::IqnTargetBf16Small::DECL,
    &iqn::IqnTargetFp16GroupMedium::DECL,
    &iqn::IqnTargetFp16GroupSmall::DECL,
    &iqn::IqnTargetFp32Large::DECL,
    &iqn::IqnTargetFp32Medium::DECL,
    &iqn::IqnTargetFp32Small::DECL,
    &iqn::IqnTargetTf32Large::DECL,
    &iqn::IqnTargetTf32Medium::DECL,
    &iqn::IqnTargetTf32Small::DECL,
    &mamba::MambaBackward::DECL,
    &mamba::MambaFold::DECL,
    &mamba::MambaForward::DECL,
    &mamba::MambaJoin::DECL,
    &mamba::MambaReduce::DECL,
    &mamba::MambaUnfold::DECL,
    &market_count::MarketCount::DECL,
    &market_observe::MarketObserve::DECL,
    &market_step::MarketStep::DECL,
    &noisy::NoisyCompose::DECL,
    &noisy::NoisyFactors::DECL,
    &philox_fill::PhiloxBernoulli::DECL,
    &philox_fill::PhiloxNormal::DECL,
    &philox_fill::PhiloxUniform::DECL,
    &probe::ProbeDifference::DECL,
    &probe::ProbePermute::DECL,
    &prune::PruneApply::DECL,
    &prune::PruneBegin::DECL,
    &prune::PruneDigits::DECL,
    &prune::PruneTies::DECL,
    &n_step::NStepWindow::DECL,
    &priority_sample::ImportanceWeights::DECL,
    &priority_sample::PrioritySample::DECL,
    &priority_tree::PriorityInsert::DECL,
    &priority_tree::PriorityUpdate::DECL,
    &regression::DivergingBarrier::DECL,
    &regression::DivergingShuffle::DECL,
    &sample_gather::SampleGather::DECL,
    &select_action::SelectAction::DECL,
    &spectral_norm::SpectralColumns::DECL,
    &spectral_norm::SpectralRows::DECL,
    &spectral_norm::SpectralScale::DECL,
    &step_signals::StepSignals::DECL,
    &taken_q::TakenQ::DECL,
    &taken_q::TakenQWide::DECL,
    &task_step::TaskStep::DECL,
    &term_reduce::GroupReduce::DECL,
    &term_reduce::GroupSquares::DECL,
    &term_reduce::TermReduce::DECL,
    &update_scales::UpdateScales::DECL,
    &vaccine::VaccineApply::DECL,
    &vaccine::VaccineProducts::DECL,
];
