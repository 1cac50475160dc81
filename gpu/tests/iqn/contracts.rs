//! What a launch must not do is refused.

use cuda_std::emulator::HostBuf;
use cuda_std::{Buf, Kernel};
use gpu::action;
use gpu::kernels::iqn::{
    Arithmetic, Below, ChunkArguments, HeadBuffers, IqnLossBf16GroupSmall, IqnLossBf16Large,
    IqnLossBf16Small, IqnLossFp32Large, IqnLossFp32Medium, IqnLossTf32Small, IqnPackHalfSmall, IqnPackSmall,
    IqnReduceSmall, IqnTargetTf32Small, LossArguments, LossKernel, PackArguments, PackKernel,
    ReduceArguments, ReduceKernel, SELECT, SELECT_AND_GATHER, Shape, TargetArguments, TargetKernel, TileSize,
    choose,
};

const PLANE: Arithmetic = Arithmetic::Tf32;

const SHAPE: Shape = Shape {
    batch: 8,
    trunk: 16,
    cosines: 8,
    hidden: 12,
    outputs: 5,
    branches: 2,
    sizes: 3 | 2 << 8,
    quantiles: 4,
    targets: 6,
    slope: 0.01,
};

/// Memory that is large enough for everything, at a 16-byte boundary.
struct Memory {
    floats: HostBuf<f32>,
    words: HostBuf<u64>,
}

impl Memory {
    fn new() -> Memory {
        Memory { floats: HostBuf::zeroed(1 << 20), words: HostBuf::zeroed(64) }
    }

    fn head(&self) -> HeadBuffers {
        let f = |len: usize| self.floats.buf().slice(0, len);
        HeadBuffers {
            h: f(8 * 16),
            packed: f(TileSize::Small.packed(PLANE, 16, 5)),
            cos_bias: f(16),
            hid_bias: f(12),
            out_bias: f(5),
        }
    }

    fn loss(&self) -> LossArguments {
        let f = |len: usize| self.floats.buf().slice(0, len);
        LossArguments {
            kappa: 1.0,
            draw: true,
            blocks: 132,
            seed: 1,
            clock_words: self.words.buf().slice(0, 4),
            taus: f(8 * 4),
            next: f(8 * 2 * 6),
            actions: self.words.buf().slice(0, 8),
            rewards: f(8),
            discounts: f(8),
            weights: f(8),
            loss: f(8),
            below: Below { output: f(8 * 16), slope: 0.01 },
            dh: f(8 * 16),
            planes: f(TileSize::Small.plane(PLANE, 16, 5)),
            images: f(IqnLossBf16GroupSmall::images(&SHAPE)),
        }
    }

    fn target(&self) -> TargetArguments {
        TargetArguments {
            mode: SELECT_AND_GATHER,
            draw: false,
            blocks: 132,
            seed: 1,
            clock_words: self.words.buf().slice(0, 4),
            taus: self.floats.buf().slice(0, 8 * 6),
            greedy: self.words.buf().slice(0, 8),
            next: self.floats.buf().slice(0, 8 * 2 * 6),
        }
    }
}

/// One element less.
fn shorter<T: cuda_std::Element>(buffer: Buf<T>) -> Buf<T> {
    buffer.slice(0, buffer.len() - 1)
}

#[test]
fn a_loss_that_does_not_fit_is_refused() {
    let memory = Memory::new();
    let (head, more) = (memory.head(), memory.loss());
    let check = |shape: &Shape, head: &HeadBuffers, more: &LossArguments| {
        IqnLossTf32Small::new(shape, head, more).check().is_ok()
    };
    assert!(check(&SHAPE, &head, &more));
    let shapes = [
        ("no sample", Shape { batch: 0, ..SHAPE }),
        ("more samples than buffers", Shape { batch: 9, ..SHAPE }),
        ("more features than h", Shape { trunk: 20, ..SHAPE }),
        ("more cosines than the size has", Shape { cosines: 65, ..SHAPE }),
        ("more hidden units than the size has", Shape { hidden: 129, ..SHAPE }),
        ("outputs that are not the branches'", Shape { outputs: 4, ..SHAPE }),
        ("no branch", Shape { branches: 0, outputs: 0, ..SHAPE }),
        ("a branch without actions", Shape { branches: 3, ..SHAPE }),
        ("no quantile", Shape { quantiles: 0, ..SHAPE }),
        ("too many quantiles", Shape { quantiles: 65, ..SHAPE }),
        ("no target", Shape { targets: 0, ..SHAPE }),
        ("a slope that turns signs", Shape { slope: -0.1, ..SHAPE }),
    ];
    for (what, shape) in shapes {
        assert!(!check(&shape, &head, &more), "{what}");
    }
    let heads = [
        ("h", HeadBuffers { h: shorter(head.h), ..head }),
        ("packed", HeadBuffers { packed: shorter(head.packed), ..head }),
        ("cos_bias", HeadBuffers { cos_bias: shorter(head.cos_bias), ..head }),
        ("hid_bias", HeadBuffers { hid_bias: shorter(head.hid_bias), ..head }),
        ("out_bias", HeadBuffers { out_bias: shorter(head.out_bias), ..head }),
    ];
    for (what, head) in heads {
        assert!(!check(&SHAPE, &head, &more), "{what} is short");
    }
    let arguments = [
        ("kappa", LossArguments { kappa: 0.0, ..more }),
        ("no block", LossArguments { blocks: 0, ..more }),
        ("clock", LossArguments { clock_words: shorter(more.clock_words), ..more }),
        ("taus", LossArguments { taus: shorter(more.taus), ..more }),
        ("next", LossArguments { next: shorter(more.next), ..more }),
        ("actions", LossArguments { actions: shorter(more.actions), ..more }),
        ("weights", LossArguments { weights: shorter(more.weights), ..more }),
        ("loss", LossArguments { loss: shorter(more.loss), ..more }),
        ("dh", LossArguments { dh: shorter(more.dh), ..more }),
        (
            "below",
            LossArguments { below: Below { output: shorter(more.below.output), ..more.below }, ..more },
        ),
        ("its slope", LossArguments { below: Below { slope: 1.5, ..more.below }, ..more }),
        ("planes", LossArguments { planes: shorter(more.planes), ..more }),
        ("planes off 16 bytes", LossArguments { planes: memory.floats.buf().slice(1, 100_000), ..more }),
    ];
    for (what, more) in arguments {
        assert!(!check(&SHAPE, &head, &more), "{what}");
    }
    // Rows that are not whole 16 bytes are copied float by float, unless the launch promises otherwise.
    let odd = Shape { trunk: 15, ..SHAPE };
    assert!(check(&odd, &head, &more));
    let promised = IqnLossTf32Small { vectors: 1, ..IqnLossTf32Small::new(&odd, &head, &more) };
    assert!(promised.check().is_err());
    // A block without samples would leave its plane unwritten.
    let idle = IqnLossTf32Small { blocks: 2, ..IqnLossTf32Small::new(&SHAPE, &head, &more) };
    assert!(idle.check().is_err());
}

#[test]
fn weights_that_do_not_fit_or_another_rounding_are_refused() {
    let memory = Memory::new();
    let f = |len: usize| memory.floats.buf().slice(0, len);
    let arguments = PackArguments {
        arithmetic: PLANE,
        cos_weight: f(16 * 8),
        hid_weight: f(12 * 16),
        out_weight: f(5 * 12),
        packed: f(TileSize::Small.packed(PLANE, 16, 5)),
    };
    let check = |arguments: &PackArguments| IqnPackSmall::new(&SHAPE, arguments).check().is_ok();
    assert!(check(&arguments) && check(&PackArguments { arithmetic: Arithmetic::Fp32, ..arguments }));
    let half = PackArguments { arithmetic: Arithmetic::Bf16, ..arguments };
    assert!(!check(&half));
    assert!(IqnPackHalfSmall::new(&SHAPE, &half).check().is_ok());
    assert!(IqnPackHalfSmall::new(&SHAPE, &arguments).check().is_err());
    assert!(!check(&PackArguments { cos_weight: shorter(arguments.cos_weight), ..arguments }));
    assert!(!check(&PackArguments { hid_weight: shorter(arguments.hid_weight), ..arguments }));
    assert!(!check(&PackArguments { out_weight: shorter(arguments.out_weight), ..arguments }));
    assert!(!check(&PackArguments { packed: shorter(arguments.packed), ..arguments }));
}

#[test]
fn a_target_or_a_reduction_that_does_not_fit_is_refused() {
    let memory = Memory::new();
    let (head, more) = (memory.head(), memory.target());
    let check = |more: &TargetArguments| IqnTargetTf32Small::new(&SHAPE, &head, more).check().is_ok();
    assert!(check(&more));
    assert!(!check(&TargetArguments { mode: 3, ..more }));
    assert!(!check(&TargetArguments { taus: shorter(more.taus), ..more }));
    assert!(!check(&TargetArguments { greedy: shorter(more.greedy), ..more }));
    assert!(!check(&TargetArguments { next: shorter(more.next), ..more }));
    assert!(
        check(&TargetArguments { mode: SELECT, next: shorter(more.next), ..more }),
        "next is not written"
    );

    let gradients = [16 * 8, 16, 12 * 16, 12, 5 * 12, 5].map(|len| memory.floats.buf().slice(0, len));
    let planes = memory.floats.buf().slice(0, TileSize::Small.plane(PLANE, 16, 5));
    let more = ReduceArguments { blocks: 1, parts: 1, planes, gradients };
    let check = |more: &ReduceArguments| IqnReduceSmall::new(&SHAPE, more).check().is_ok();
    assert!(check(&more));
    assert!(!check(&ReduceArguments { planes: shorter(planes), ..more }));
    assert!(!check(&ReduceArguments { blocks: 2, ..more }));
    assert!(!check(&ReduceArguments { parts: 2, ..more }));
    assert!(!check(&ReduceArguments { parts: 0, ..more }));
    for i in 0..6 {
        let mut gradients = gradients;
        gradients[i] = shorter(gradients[i]);
        assert!(!check(&ReduceArguments { gradients, ..more }), "gradient {i}");
    }
}

#[test]
fn a_second_kernel_that_does_not_fit_is_refused() {
    let memory = Memory::new();
    let (head, LossArguments { images, below, dh, planes, .. }) = (memory.head(), memory.loss());
    let more = ChunkArguments { blocks: 132, images, below, dh, planes };
    let check = |shape: &Shape, more: &ChunkArguments| {
        let chunks =
            IqnLossBf16GroupSmall::chunks(shape, &head, more).expect("a kernel of warpgroups has a second");
        chunks.check().is_ok()
    };
    assert!(check(&SHAPE, &more));
    assert!(!check(&Shape { batch: 9, ..SHAPE }, &more));
    assert!(!check(&Shape { quantiles: 65, ..SHAPE }, &more));
    assert!(!check(&Shape { branches: 0, ..SHAPE }, &more));
    assert!(!check(&SHAPE, &ChunkArguments { images: shorter(images), ..more }));
    assert!(!check(&SHAPE, &ChunkArguments { dh: shorter(dh), ..more }));
    let short = Below { output: shorter(below.output), ..below };
    assert!(!check(&SHAPE, &ChunkArguments { below: short, ..more }));
    assert!(!check(&SHAPE, &ChunkArguments { below: Below { slope: -0.1, ..below }, ..more }));
    assert!(!check(&SHAPE, &ChunkArguments { planes: shorter(planes), ..more }));
    assert!(IqnLossBf16Small::chunks(&SHAPE, &head, &more).is_none(), "one kernel makes all gradients");
    // Parts: at least one for each block of two chunks, and no more than there are tiles.
    let shape = Shape { batch: 64, trunk: 130, quantiles: 32, ..SHAPE };
    let parts = [1, 6, 132].map(|most| IqnLossBf16GroupSmall::parts(&shape, most));
    assert_eq!(parts, [1, 3, 16], "three chunks for two blocks, 16 tiles of 4 samples");
}

#[test]
fn a_size_is_chosen_by_hidden_units_and_cosines() {
    assert_eq!(choose(128, 64), Some(TileSize::Small));
    assert_eq!(choose(129, 64), Some(TileSize::Medium));
    assert_eq!(choose(16, 65), Some(TileSize::Large));
    assert_eq!(choose(512, 256), Some(TileSize::Large));
    assert_eq!(choose(513, 1), None);
    assert_eq!(choose(1, 257), None);
    assert_eq!(action::branch(SHAPE.sizes, 1), 2);
    // No size needs more shared memory than a device has.
    let memory = Memory::new();
    let (head, more) = (memory.head(), memory.loss());
    let shared = [
        IqnLossTf32Small::new(&SHAPE, &head, &more).shared_bytes(),
        IqnLossFp32Medium::new(&SHAPE, &head, &more).shared_bytes(),
        IqnLossFp32Large::new(&SHAPE, &head, &more).shared_bytes(),
        IqnLossBf16Small::new(&SHAPE, &head, &more).shared_bytes(),
        IqnLossBf16Large::new(&SHAPE, &head, &more).shared_bytes(),
    ];
    assert!(shared.iter().all(|&bytes| bytes <= 227 * 1024), "{shared:?}");
}
