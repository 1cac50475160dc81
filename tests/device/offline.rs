//! Learning from a data set on the GPU, beside the CPU.

use std::path::Path;

use host::step::Matmul;
use host::train::Stop;
use host::train::offline::{CpuOffline, GpuOffline, OfflineAgent, OfflineData};
use settings::{Config, Precision};

fn data() -> (Config, OfflineData) {
    let mut config = Config::cpu_preset();
    config.model.branches = vec![3, 2];
    config.train.precision = Precision::Fp32;
    config.train.batch = 32;
    (config.replay.n_step, config.replay.prioritized) = (2, true);
    (config.model.v_min, config.model.v_max) = (0.0, 512.0);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/transitions/minari.hdf5");
    config.transitions.file = Some(file.to_str().expect("a path in UTF-8").into());
    (config.transitions.validation, config.iqn.enabled, config.cql.enabled) = (0.3, true, true);
    let data = OfflineData::prepare(&mut config).expect("the data set");
    (config, data)
}

/// Draws and losses are the CPU's; two runs are the same bits.
#[test]
#[ignore = "needs a GPU: run scripts/gpu-check.sh"]
fn the_gpu_learns_what_the_cpu_learns() {
    let (config, data) = data();
    let mut cpu = CpuOffline::new(&config, &data).expect("a learner");
    let expected = cpu.train(20, &Stop::default(), &mut |_| ()).expect("steps");
    let run = || {
        let mut exec = crate::open();
        exec.set_rust_product(host::gemm::product);
        let mut agent = GpuOffline::new(&config, &data, exec, Matmul::Rust).expect("a learner");
        let rows = agent.train(20, &Stop::default(), &mut |_| ()).expect("steps");
        (rows, agent.parameters().expect("parameters"))
    };
    let (rows, parameters) = run();
    for (step, (got, want)) in rows.iter().zip(&expected).enumerate() {
        // SPEC section 8: losses of the first steps within 1e-4; later ones follow from rounded parameters.
        let bound = if step == 0 { 1e-4 } else { 1e-2 };
        let close = |a: f32, b: f32| (a - b).abs() <= bound * b.abs().max(1e-3);
        assert!(close(got.loss, want.loss), "step {step}: loss {}, on the CPU {}", got.loss, want.loss);
        let (iqn, iqn_cpu) = (got.parts.loss_iqn.expect("IQN"), want.parts.loss_iqn.expect("IQN"));
        assert!(close(iqn, iqn_cpu), "step {step}: IQN loss {iqn}, on the CPU {iqn_cpu}");
        assert!(!got.skipped);
    }
    assert!(rows[19].loss < rows[0].loss, "{} to {}", rows[0].loss, rows[19].loss);
    let (again, same) = run();
    assert_eq!(again, rows);
    assert!(parameters == same, "two runs differ");
}
