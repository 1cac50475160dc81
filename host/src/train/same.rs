//! What has to be the same for a run to go on bit for bit.

use anyhow::bail;
use settings::{Config, Difference};

use crate::train::market::SymbolRecord;
use crate::train::saves::Origin;

/// Whether a run that was started with `before` may go on with `now`; with more epochs only where `more_epochs`.
///
/// # Errors
/// Names every key that differs and may not.
pub fn check_config(before: &Config, now: &Config, more_epochs: bool) -> anyhow::Result<()> {
    let refused = |d: &Difference| match d.key.as_str() {
        "train.epochs" => !more_epochs || now.train.epochs < before.train.epochs,
        // Another place of the same bars, which their hash tells.
        "data.file" => before.data.file.is_none() || now.data.file.is_none(),
        "data.files" => before.data.files.is_empty() || now.data.files.is_empty(),
        "transitions.files" => false,
        key => !key.starts_with("checkpoint."),
    };
    let differences: Vec<String> =
        before.differences(now).iter().filter(|d| refused(d)).map(Difference::to_string).collect();
    if differences.is_empty() {
        return Ok(());
    }
    // The folds of a walk-forward that are done were trained with as many epochs as they had.
    let (what, may) = match more_epochs {
        true => ("the run", "train.epochs may be raised, checkpoint.* be changed"),
        false => ("the walk-forward", "checkpoint.* may be changed"),
    };
    bail!(
        "{what} cannot go on with another configuration ({}): only {may}, and data.file (transitions.files) be another place of the \
         same data",
        differences.join("; ")
    )
}

/// Whether the symbols have the bars and the parts that they had.
///
/// # Errors
/// Says both hashes of the bars, of the first symbol that differs.
pub fn check_bars(before: &[SymbolRecord], now: &[SymbolRecord]) -> anyhow::Result<()> {
    if before.len() != now.len() {
        bail!("the run cannot go on with {} symbol(s): it was trained on {}", now.len(), before.len());
    }
    for (before, now) in before.iter().zip(now) {
        if (&before.bars_hash, before.bars) != (&now.bars_hash, now.bars) || before.fold != now.fold {
            bail!(
                "the run cannot go on with other bars: {} has {} bars with hash {}, it was trained on {} ({} bars, \
                 hash {})",
                now.source,
                now.bars,
                now.bars_hash,
                before.source,
                before.bars,
                before.bars_hash
            );
        }
    }
    Ok(())
}

/// Whether what computes now computes the bits of what saved a state.
///
/// # Errors
/// Names what differs: the program, its kernels, the device.
pub fn check_origin(saved: &Origin, now: &Origin) -> anyhow::Result<()> {
    let differences = now.differences(saved);
    if !differences.is_empty() {
        bail!("the run cannot go on bit for bit: {}", differences.join("; "));
    }
    Ok(())
}
