//! Damaged policies and states: an error, or what was written; never a panic, and no memory that the file does not have.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use host::step::Kept;
use host::tensors::{Tensors, Values};
use host::train::Stop;
use host::train::agent::Agent;
use host::train::checkpoint::{Checkpoint, Provenance};
use host::train::cpu::CpuAgent;
use host::train::market::Market;
use host::train::position::Position;
use host::train::saves::{Origin, SavedRun, State};
use host::train::tensor_file;
use proptest::prelude::*;
use settings::Config;

/// A small agent's configuration and market.
static SMALL: LazyLock<(Config, Market)> = LazyLock::new(|| {
    let sets = "data.synthetic_bars=1200 model.trunk1=8 model.trunk2=8 model.value_hidden=4 model.branch_hidden=4 \
                model.atoms=11 train.batch=4 collect.environments=3 collect.capacity=30 replay.prioritized=true \
                iql.enabled=true iql.hidden=4 confidence.enabled=true pruning.enabled=true pruning.begin=0 pruning.every=5 \
                pruning.end=60";
    let sets: Vec<String> = sets.split_whitespace().map(String::from).collect();
    let mut config = Config::layered(&Config::cpu_preset(), None, &sets).expect("a configuration");
    let market = Market::prepare(&mut config).expect("a market");
    (config, market)
});

/// A policy of it, as bytes.
static POLICY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let (config, market) = &*SMALL;
    let mut agent = CpuAgent::new(config, market).expect("an agent");
    let (online, target) = agent.parameters().expect("parameters");
    let provenance = Provenance {
        epoch: 1,
        device: agent.device(),
        kernels: "none".into(),
        program: "0".into(),
        score: Some(1.0),
    };
    let (config, market) = (config.clone(), Some(market.record.clone()));
    let kept: Kept = agent.kept().expect("what is kept");
    Checkpoint { config, market, data_set: None, provenance, online, target, kept }.bytes().expect("bytes")
});

/// Metadata and tensors of a state.
static STATE: LazyLock<(BTreeMap<String, String>, Tensors)> = LazyLock::new(|| {
    let (config, market) = &*SMALL;
    let mut agent = CpuAgent::new(config, market).expect("an agent");
    agent.collect(5, 0.5, &Stop::default()).expect("experience");
    agent.train(2, &Stop::default(), &mut |_| std::ops::ControlFlow::Continue(())).expect("two steps");
    let saved = SavedRun {
        config: config.clone(),
        market: Some(market.record.clone()),
        data_set: None,
        origin: Origin::of(&agent, "none"),
        position: Position { collected: 5, trained: 2, step: 2, ..Position::start() },
        policies: [Some(POLICY.clone()), None],
        best_score: Some(1.0),
        agent: agent.save_state().expect("a state"),
    };
    saved.parts().expect("the file's contents")
});

/// A changed state as a file, read and restored: an error, or not.
fn restored(metadata: BTreeMap<String, String>, tensors: &Tensors) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("000001.safetensors");
    // With a checksum that is right: what is behind it is to be met.
    tensor_file::write(&path, metadata, tensors)?;
    let mut saved = SavedRun::read(&path)?;
    saved.best()?;
    let (config, market) = &*SMALL;
    let mut agent = CpuAgent::new(config, market)?;
    agent.load_state(&mut saved.agent)?;
    saved.agent.finish()?;
    Ok(())
}

#[test]
fn an_unchanged_state_is_restored() {
    let (metadata, tensors) = &*STATE;
    restored(metadata.clone(), tensors).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn policies(at in any::<usize>(), bytes in prop::collection::vec(any::<u8>(), 0..6), removed in 0..6_usize,
        in_header in any::<bool>()) {
        let mut changed = POLICY.clone();
        let header = 8 + u64::from_le_bytes(changed[..8].try_into().expect("eight bytes")) as usize;
        let at = at % if in_header { header } else { changed.len() };
        let end = (at + removed).min(changed.len());
        changed.splice(at..end, bytes);
        if let Ok((policy, _)) = Checkpoint::of_bytes("changed", &changed) {
            prop_assert!(policy.bytes().expect("bytes") == *POLICY, "damage that nobody saw");
        }
    }

    /// Without the checksum, as earlier programs wrote them, the checks behind it are met.
    #[test]
    fn policies_without_checksum(at in any::<usize>(), byte in any::<u8>()) {
        let text = b"\"checksum\":";
        let place = POLICY.windows(text.len()).position(|w| w == text).expect("the checksum");
        let mut changed = POLICY.clone();
        changed[place + 1] = b'C';
        let at = at % changed.len();
        changed[at] = byte;
        let _ = Checkpoint::of_bytes("changed", &changed);
    }

    #[test]
    fn states(tensor in any::<usize>(), at in any::<usize>(), byte in any::<u8>(), cut in any::<bool>(),
        field in any::<usize>(), place in any::<usize>(), text in "[0-9a-z\"{}:,.-]{0,4}") {
        let (mut metadata, mut tensors) = STATE.clone();
        if let Some(values) = tensors.by_name.values_mut().nth(tensor % STATE.1.by_name.len()) {
            if cut {
                *values = Values::F32(vec![0.5; at % 7]);
            } else if !values.is_empty() {
                let at = at % values.bytes().len();
                values.bytes_mut()[at] = byte;
            }
        }
        let _ = restored(metadata.clone(), &tensors);
        let value = metadata.values_mut().nth(field % STATE.0.len()).expect("metadata");
        let place = (0..=place % (value.len() + 1)).rev().find(|&i| value.is_char_boundary(i)).unwrap_or(0);
        value.insert_str(place, &text);
        let _ = restored(metadata, &STATE.1);
    }
}
