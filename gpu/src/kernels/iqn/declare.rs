//! What the module above declares kernels with: a macro for each kind, one line a kernel.

macro_rules! pack_kernels {
    ($($name:ident $launch:ident $size:ident $(only $only:literal)?;)*) => { $(
        /// Wc [H2, E], Wh [Hq, H2] and Wo [A, Hq] in the order of the size's tiles, rounded; see `pack`.
        #[kernel(
            block = pack::THREADS,
            grid = launch::packed::<$size>(trunk, outputs).div_ceil(pack::THREADS as u64) as u32,
            $(only = $only,)?
            requires(
                launch::head_size::<$size>(trunk, cosines, hidden, outputs),
                launch::rounding_fits::<$size>(rounding),
                cos_weight.len() >= (trunk as usize) * (cosines as usize),
                hid_weight.len() >= (hidden as usize) * (trunk as usize),
                out_weight.len() >= (outputs as usize) * (hidden as usize),
                packed.len() as u64 >= launch::packed::<$size>(trunk, outputs),
            )
        )]
        pub fn $name(
            trunk: u32,
            cosines: u32,
            hidden: u32,
            outputs: u32,
            rounding: u32,
            cos_weight: In<f32>,
            hid_weight: In<f32>,
            out_weight: In<f32>,
            packed: Out<f32>,
        ) {
            let weights = pack::Weights { trunk, cosines, hidden, outputs, cos_weight, hid_weight, out_weight };
            weights.pack::<$size>(rounding, packed);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl PackKernel for $launch {
            fn new(shape: &Shape, more: &PackArguments) -> $launch {
                $launch {
                    trunk: shape.trunk,
                    cosines: shape.cosines,
                    hidden: shape.hidden,
                    outputs: shape.outputs,
                    rounding: more.rounding(),
                    cos_weight: more.cos_weight.into(),
                    hid_weight: more.hid_weight.into(),
                    out_weight: more.out_weight.into(),
                    packed: more.packed.into(),
                }
            }
        }
    )* };
}

macro_rules! target_kernels {
    ($($name:ident $launch:ident $arithmetic:ident $size:ident $tile:ident $pack:ident $(only $only:literal)?;)*) => { $(
        /// Greedy actions and their quantiles; see the module.
        ///
        /// `mode`: [`SELECT_AND_GATHER`] writes `greedy` [B] (one byte a branch) and `next` [B, D, N'];
        /// [`SELECT`] writes `greedy` alone; [`GATHER`] reads `greedy` and writes `next`. With `draw` = 1 tau is drawn
        /// (stream `IqnTauTarget`, index sample * N' + j) and written to `taus` [B, N'], with 0 read from there.
        /// `h` is [B, H2] at s'. `packed` are the weights as `iqn_pack_*` of this arithmetic and size wrote
        /// them. `vectors` = 1 promises an address and rows of whole 16 bytes for h.
        #[kernel(
            block = $size::THREADS,
            grid = blocks,
            shared = Memory::<$size>::BYTES,
            barriers = 8,
            shuffles = 1,
            mmas = launch::target_mmas::<$arithmetic, $size>(),
            resident = $size::RESIDENT,
            $(only = $only,)?
            requires(
                launch::head_fits::<$size>(
                    batch, trunk, cosines, hidden, outputs, vectors, h.buf(), packed.buf(),
                    [cos_bias.buf(), hid_bias.buf(), out_bias.buf()]
                ),
                launch::branches_fit(branches, sizes, outputs),
                mode <= GATHER,
                draw <= 1,
                slope >= 0.0 && slope <= 1.0,
                quantiles >= 1,
                quantiles <= size::MAX_QUANTILES,
                blocks >= 1,
                (batch as u64) * (quantiles as u64) * (branches as u64) <= 0xffff_ffff,
                clock_words.len() >= clock::WORDS as usize,
                taus.len() >= (batch as usize) * (quantiles as usize),
                greedy.len() >= batch as usize,
                mode == SELECT || next.len() >= (batch as usize) * (branches as usize) * (quantiles as usize),
            )
        )]
        pub fn $name(
            batch: u32,
            trunk: u32,
            cosines: u32,
            hidden: u32,
            outputs: u32,
            branches: u32,
            sizes: u64,
            quantiles: u32,
            slope: f32,
            mode: u32,
            draw: u32,
            vectors: u32,
            blocks: u32,
            seed: u64,
            clock_words: In<u64>,
            h: In<f32>,
            packed: In<f32>,
            cos_bias: In<f32>,
            hid_bias: In<f32>,
            out_bias: In<f32>,
            taus: InOut<f32>,
            greedy: InOut<u64>,
            next: Out<f32>,
        ) {
            let head = Head {
                batch, trunk, cosines, hidden, outputs, slope, vectors: vectors != 0,
                h, packed, cos_bias, hid_bias, out_bias,
            };
            let step = clock_words.get(clock::STEP);
            let taus = Taus { taus, draw: draw != 0, seed, step, stream: philox::Stream::IqnTauTarget };
            let target = Target { mode, blocks, branches, sizes, quantiles, greedy, next };
            target::run::<$arithmetic, $size>(&head, &taus, &target);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl TargetKernel for $launch {
            type Pack = $pack;
            const ARITHMETIC: Arithmetic = <$arithmetic as product::Arithmetic>::KIND;
            const SIZE: TileSize = TileSize::$tile;

            fn new(shape: &Shape, head: &HeadBuffers, more: &TargetArguments) -> $launch {
                $launch {
                    batch: shape.batch,
                    trunk: shape.trunk,
                    cosines: shape.cosines,
                    hidden: shape.hidden,
                    outputs: shape.outputs,
                    branches: shape.branches,
                    sizes: shape.sizes,
                    quantiles: shape.targets,
                    slope: shape.slope,
                    mode: more.mode,
                    draw: more.draw.into(),
                    vectors: head.vectors(shape).into(),
                    blocks: launch::blocks::<$size>(shape.batch, shape.targets, more.blocks),
                    seed: more.seed,
                    clock_words: more.clock_words.into(),
                    h: head.h.into(),
                    packed: head.packed.into(),
                    cos_bias: head.cos_bias.into(),
                    hid_bias: head.hid_bias.into(),
                    out_bias: head.out_bias.into(),
                    taus: more.taus.into(),
                    greedy: more.greedy.into(),
                    next: more.next.into(),
                }
            }
        }
    )* };
}

macro_rules! loss_kernels {
    (
        $($name:ident $launch:ident $arithmetic:ident $size:ident $tile:ident $pack:ident $reduce:ident
            $(chunks $chunks:ident $chunk_size:ident only $only:literal)?;)*
    ) => { $(
        /// Loss of each sample [B] (not weighted), its weighted mean's gradient `dh` [B, H2], and the
        /// blocks' parts of the parameters' gradients, `blocks` planes of [`TileSize::plane`] floats; see the module. `dh`
        /// is taken through the trunk's activation: the gradient with respect to h, times `below_slope` where `below`
        /// [B, H2] is not positive. Of warpgroups the output layer's gradients alone, and `images` for [`LossKernel::chunks`], which makes the others.
        ///
        /// `next` [B, D, N'] are the greedy actions' quantiles, `actions` [B] one byte a branch, `discounts` gamma^m (1 -
        /// terminated). With `draw` = 1 tau is drawn (stream `IqnTau`, index sample * N + i) and written to `taus`
        /// [B, N], with 0 read from there. `vectors` as in the target kernels. No block is without samples: each writes
        /// its plane.
        #[kernel(
            block = $size::THREADS,
            grid = blocks,
            shared = Memory::<$size>::BYTES,
            barriers = 16,
            shuffles = launch::loss_shuffles::<$arithmetic, $size>(),
            mmas = launch::loss_mmas::<$arithmetic, $size>(),
            resident = $size::RESIDENT,
            $(only = $only,)?
            requires(
                launch::head_fits::<$size>(
                    batch, trunk, cosines, hidden, outputs, vectors, h.buf(), packed.buf(),
                    [cos_bias.buf(), hid_bias.buf(), out_bias.buf()]
                ),
                launch::branches_fit(branches, sizes, outputs),
                draw <= 1,
                slope >= 0.0 && slope <= 1.0,
                kappa > 0.0,
                quantiles >= 1,
                quantiles <= size::MAX_QUANTILES,
                targets >= 1,
                targets <= size::MAX_QUANTILES,
                blocks >= 1,
                blocks <= launch::groups::<$size>(batch, quantiles),
                (batch as u64) * (quantiles as u64) <= 0xffff_ffff,
                (batch as u64) * (targets as u64) * (branches as u64) <= 0xffff_ffff,
                clock_words.len() >= clock::WORDS as usize,
                taus.len() >= (batch as usize) * (quantiles as usize),
                next.len() >= (batch as usize) * (branches as usize) * (targets as usize),
                actions.len() >= batch as usize,
                rewards.len() >= batch as usize,
                discounts.len() >= batch as usize,
                weights.len() >= batch as usize,
                loss.len() >= batch as usize,
                dh.len() >= (batch as usize) * (trunk as usize),
                below.len() >= (batch as usize) * (trunk as usize),
                below_slope >= 0.0 && below_slope <= 1.0,
                (blocks as u64) * launch::plane::<$size>(trunk, outputs) <= 0xffff_ffff,
                planes.len() as u64 >= (blocks as u64) * launch::plane::<$size>(trunk, outputs),
                launch::aligned(planes.buf()),
                launch::images::<$size>(batch, quantiles) <= 0xffff_ffff,
                images.len() as u64 >= launch::images::<$size>(batch, quantiles),
                launch::aligned(images.buf()),
            )
        )]
        pub fn $name(
            batch: u32,
            trunk: u32,
            cosines: u32,
            hidden: u32,
            outputs: u32,
            branches: u32,
            sizes: u64,
            quantiles: u32,
            targets: u32,
            slope: f32,
            kappa: f32,
            draw: u32,
            vectors: u32,
            blocks: u32,
            seed: u64,
            clock_words: In<u64>,
            h: In<f32>,
            packed: In<f32>,
            cos_bias: In<f32>,
            hid_bias: In<f32>,
            out_bias: In<f32>,
            taus: InOut<f32>,
            next: In<f32>,
            actions: In<u64>,
            rewards: In<f32>,
            discounts: In<f32>,
            weights: In<f32>,
            loss: InOut<f32>,
            below_slope: f32,
            below: In<f32>,
            dh: InOut<f32>,
            planes: InOut<f32>,
            images: Out<f32>,
        ) {
            let head = Head {
                batch, trunk, cosines, hidden, outputs, slope, vectors: vectors != 0,
                h, packed, cos_bias, hid_bias, out_bias,
            };
            let step = clock_words.get(clock::STEP);
            let taus = Taus { taus, draw: draw != 0, seed, step, stream: philox::Stream::IqnTau };
            let loss = Loss {
                blocks, branches, sizes, quantiles, targets, kappa, next, actions, rewards, discounts, weights, loss, dh, below,
                below_slope, planes, images,
            };
            loss::run::<$arithmetic, $size>(&head, &taus, &loss);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl LossKernel for $launch {
            type Pack = $pack;
            type Reduce = $reduce;
            const ARITHMETIC: Arithmetic = <$arithmetic as product::Arithmetic>::KIND;
            const SIZE: TileSize = TileSize::$tile;

            fn blocks(shape: &Shape, most: u32) -> u32 {
                launch::blocks::<$size>(shape.batch, shape.quantiles, most)
            }

            fn images(shape: &Shape) -> usize {
                launch::images::<$size>(shape.batch, shape.quantiles) as usize
            }

            loss_kernels!(@chunks $($chunks $chunk_size)?);

            fn new(shape: &Shape, head: &HeadBuffers, more: &LossArguments) -> $launch {
                $launch {
                    batch: shape.batch,
                    trunk: shape.trunk,
                    cosines: shape.cosines,
                    hidden: shape.hidden,
                    outputs: shape.outputs,
                    branches: shape.branches,
                    sizes: shape.sizes,
                    quantiles: shape.quantiles,
                    targets: shape.targets,
                    slope: shape.slope,
                    kappa: more.kappa,
                    draw: more.draw.into(),
                    vectors: head.vectors(shape).into(),
                    blocks: launch::blocks::<$size>(shape.batch, shape.quantiles, more.blocks),
                    seed: more.seed,
                    clock_words: more.clock_words.into(),
                    h: head.h.into(),
                    packed: head.packed.into(),
                    cos_bias: head.cos_bias.into(),
                    hid_bias: head.hid_bias.into(),
                    out_bias: head.out_bias.into(),
                    taus: more.taus.into(),
                    next: more.next.into(),
                    actions: more.actions.into(),
                    rewards: more.rewards.into(),
                    discounts: more.discounts.into(),
                    weights: more.weights.into(),
                    loss: more.loss.into(),
                    below_slope: more.below.slope,
                    below: more.below.output.into(),
                    dh: more.dh.into(),
                    planes: more.planes.into(),
                    images: more.images.into(),
                }
            }
        }
    )* };
    (@chunks) => {
        type Chunks = Self;

        fn parts(shape: &Shape, most: u32) -> u32 {
            Self::blocks(shape, most)
        }

        fn chunks(_: &Shape, _: &HeadBuffers, _: &ChunkArguments) -> Option<Self> {
            None
        }
    };
    (@chunks $chunks:ident $size:ident) => {
        type Chunks = $chunks;

        fn parts(shape: &Shape, most: u32) -> u32 {
            launch::parts::<$size>(shape, most)
        }

        fn chunks(shape: &Shape, head: &HeadBuffers, more: &ChunkArguments) -> Option<$chunks> {
            Some($chunks {
                batch: shape.batch,
                trunk: shape.trunk,
                cosines: shape.cosines,
                hidden: shape.hidden,
                outputs: shape.outputs,
                branches: shape.branches,
                quantiles: shape.quantiles,
                vectors: (head.vectors(shape) && launch::aligned(more.below.output)).into(),
                parts: Self::parts(shape, more.blocks),
                h: head.h.into(),
                packed: head.packed.into(),
                cos_bias: head.cos_bias.into(),
                hid_bias: head.hid_bias.into(),
                out_bias: head.out_bias.into(),
                images: more.images.into(),
                below_slope: more.below.slope,
                below: more.below.output.into(),
                dh: more.dh.into(),
                planes: more.planes.into(),
            })
        }
    };
}

macro_rules! chunk_kernels {
    ($($name:ident $size:ident only $only:literal;)*) => { $(
        /// What a loss kernel of warpgroups leaves: `dh` [B, H2], and the parts of the gradients of the
        /// cosine and the hidden layer, `parts` planes; see `chunks`. The `images` are the loss kernel's; `dh`, `below` and
        /// `below_slope` as there; `vectors` = 1 promises of `below` what it does of h.
        #[kernel(
            block = $size::THREADS,
            grid = parts * launch::block_chunks::<$size>(trunk),
            shared = chunks::bytes::<$size>(),
            barriers = 10,
            shuffles = launch::chunk_shuffles(),
            mmas = launch::chunk_mmas::<$size>(),
            only = $only,
            requires(
                launch::head_fits::<$size>(
                    batch, trunk, cosines, hidden, outputs, vectors, h.buf(), packed.buf(),
                    [cos_bias.buf(), hid_bias.buf(), out_bias.buf()]
                ),
                vectors == 0 || launch::aligned(below.buf()),
                branches >= 1,
                branches <= size::MAX_BRANCHES,
                quantiles >= 1,
                quantiles <= size::MAX_QUANTILES,
                (batch as u64) * (quantiles as u64) <= 0xffff_ffff,
                parts >= 1,
                parts <= launch::groups::<$size>(batch, quantiles),
                dh.len() >= (batch as usize) * (trunk as usize),
                below.len() >= (batch as usize) * (trunk as usize),
                below_slope >= 0.0 && below_slope <= 1.0,
                (parts as u64) * launch::plane::<$size>(trunk, outputs) <= 0xffff_ffff,
                planes.len() as u64 >= (parts as u64) * launch::plane::<$size>(trunk, outputs),
                launch::aligned(planes.buf()),
                launch::images::<$size>(batch, quantiles) <= 0xffff_ffff,
                images.len() as u64 >= launch::images::<$size>(batch, quantiles),
                launch::aligned(images.buf()),
            )
        )]
        pub fn $name(
            batch: u32,
            trunk: u32,
            cosines: u32,
            hidden: u32,
            outputs: u32,
            branches: u32,
            quantiles: u32,
            vectors: u32,
            parts: u32,
            h: In<f32>,
            packed: In<f32>,
            cos_bias: In<f32>,
            hid_bias: In<f32>,
            out_bias: In<f32>,
            images: In<f32>,
            below_slope: f32,
            below: In<f32>,
            dh: InOut<f32>,
            planes: InOut<f32>,
        ) {
            // The hidden layer's own slope is in du1.
            let head = Head {
                batch, trunk, cosines, hidden, outputs, slope: 1.0, vectors: vectors != 0,
                h, packed, cos_bias, hid_bias, out_bias,
            };
            let to = trunk::TrunkGradient { dh, below, below_slope, unit: loss::unit(batch, branches) };
            chunks::run::<$size>(&head, &chunks::Chunks { parts, quantiles, images, to, planes });
        }
    )* };
}

macro_rules! reduce_kernels {
    ($($name:ident $launch:ident $size:ident $chunk_size:ident $(only $only:literal)?;)*) => { $(
        /// The parameters' gradients: sums of `blocks` planes that a loss kernel of this size wrote, and of `parts` planes,
        /// which of warpgroups the chunks' kernel wrote; see `reduce`.
        #[kernel(
            block = 256,
            grid = launch::plane::<$size>(trunk, outputs).div_ceil(reduce::FLOATS_PER_BLOCK as u64) as u32,
            shared = 4 * 4 * reduce::FLOATS_PER_BLOCK,
            barriers = 1,
            $(only = $only,)?
            requires(
                launch::head_size::<$size>(trunk, cosines, hidden, outputs),
                blocks >= 1,
                parts >= 1,
                (blocks.max(parts) as u64) * launch::plane::<$size>(trunk, outputs) <= 0xffff_ffff,
                planes.len() as u64 >= (blocks.max(parts) as u64) * launch::plane::<$size>(trunk, outputs),
                launch::aligned(planes.buf()),
                cos_weight.len() >= (trunk as usize) * (cosines as usize),
                cos_bias.len() >= trunk as usize,
                hid_weight.len() >= (hidden as usize) * (trunk as usize),
                hid_bias.len() >= hidden as usize,
                out_weight.len() >= (outputs as usize) * (hidden as usize),
                out_bias.len() >= outputs as usize,
            )
        )]
        pub fn $name(
            trunk: u32,
            cosines: u32,
            hidden: u32,
            outputs: u32,
            blocks: u32,
            parts: u32,
            planes: In<f32>,
            cos_weight: Out<f32>,
            cos_bias: Out<f32>,
            hid_weight: Out<f32>,
            hid_bias: Out<f32>,
            out_weight: Out<f32>,
            out_bias: Out<f32>,
        ) {
            let to = reduce::Gradients {
                trunk, cosines, hidden, outputs,
                cos_weight, cos_bias, hid_weight, hid_bias, out_weight, out_bias,
            };
            reduce::run::<$size, $chunk_size>(&planes, blocks, parts, &to);
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl ReduceKernel for $launch {
            fn new(shape: &Shape, more: &ReduceArguments) -> $launch {
                let [cos_weight, cos_bias, hid_weight, hid_bias, out_weight, out_bias] = more.gradients;
                $launch {
                    trunk: shape.trunk,
                    cosines: shape.cosines,
                    hidden: shape.hidden,
                    outputs: shape.outputs,
                    blocks: more.blocks,
                    parts: more.parts,
                    planes: more.planes.into(),
                    cos_weight: cos_weight.into(),
                    cos_bias: cos_bias.into(),
                    hid_weight: hid_weight.into(),
                    hid_bias: hid_bias.into(),
                    out_weight: out_weight.into(),
                    out_bias: out_bias.into(),
                }
            }
        }
    )* };
}
