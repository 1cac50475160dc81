//! Matrix products on the Rust kernels, each kernel at the size of a layer of P1-core (SPEC section 9): forward over s
//! and s' together, data gradient, weight gradient with the bias gradient in four splits.

mod device;

use std::process::ExitCode;

use criterion::Throughput;
use cuda_std::{Buf, Kernel};
use device::Bench;
use gpu::kernels::gemm::{
    DataKernel, Destination, Extra, GemmNnBf16Group, GemmNnBf16Stored, GemmNtBf16Group, GemmNtBf16Stored,
    GemmTnBf16Group, GemmTnBf16Stored, Product, StoredKernel, StoredProduct, WeightKernel,
};
use gpu::kernels::halve::{Halve, HalveLrelu};
use host::error::ExecError;
use host::exec::{Exec, Lane, Memory};

const BATCH: usize = 1024;
const WIDTH: usize = 256;
const SLOPE: f32 = 0.01;

/// Multiply-adds count as two operations.
fn operations(product: &Product) -> Throughput {
    Throughput::Elements(2 * (product.m * product.n * product.k) as u64)
}

/// A product with dense buffers of these sizes.
fn product(
    bench: &mut Bench,
    (m, n, k): (usize, usize, usize),
    strides: [usize; 3],
    extra: usize,
) -> Result<Product, ExecError> {
    let [lda, ldb, ldc] = strides;
    let a = bench.random("a", m * k)?;
    let b = bench.random("b", n * k)?;
    let c: Buf<f32> = bench.exec.alloc("c", m * n)?;
    let extra = bench.random("extra", extra)?;
    Ok(Product { m, n, k, a: (a, lda), b: (b, ldb), c: (c, ldc), extra: Some(extra) })
}

/// The weight and bias gradient of a layer of `width` inputs and outputs over `rows` rows, with planes for `splits` ranges.
fn gradient(bench: &mut Bench, width: usize, rows: usize, splits: usize) -> Result<Product, ExecError> {
    let (d, x) = (bench.random("d", rows * width)?, bench.random("x", rows * width)?);
    let planes: Buf<f32> = bench.exec.alloc("gradient", splits * (width * width + width))?;
    let bias = planes.slice(width * width, planes.len() - width * width);
    Ok(Product {
        m: width,
        n: width,
        k: rows,
        a: (d, width),
        b: (x, width),
        c: (planes, width),
        extra: Some(bias),
    })
}

fn data<K: DataKernel>(bench: &mut Bench, product: &Product, extra: Extra) -> Result<(), ExecError> {
    let Product { m, n, k, .. } = *product;
    if !there::<K>(bench) {
        return Ok(());
    }
    let kernel = K::of(extra, std::slice::from_ref(product)).expect("sizes that fit");
    bench.sequence(K::DECL.name, &format!("{m} x {n} x {k}"), operations(product), move |exec, _| {
        exec.launch(Lane::MAIN, &kernel)
    })
}

/// Whether the loaded image has the kernel; says so when it has not.
fn there<K: Kernel>(bench: &Bench) -> bool {
    let there = bench.exec.has(&K::DECL);
    if !there {
        eprintln!("{}: not in the kernel image of this GPU", K::DECL.name);
    }
    there
}

fn weight<K: WeightKernel>(bench: &mut Bench, product: &Product, splits: usize) -> Result<(), ExecError> {
    let Product { m, n, k, .. } = *product;
    if !there::<K>(bench) {
        return Ok(());
    }
    let plane = (m * n + m) as u32;
    let kernel = K::of(splits as u32, plane, std::slice::from_ref(product)).expect("sizes that fit");
    let workload = format!("{m} x {n} x {k}, {splits} splits");
    bench.sequence(K::DECL.name, &workload, operations(product), move |exec, _| {
        exec.launch(Lane::MAIN, &kernel)
    })
}

/// A product of operands in bf16, its result stored in bf16. What their bits are does not matter to the speed.
fn stored<K: StoredKernel>(bench: &mut Bench, product: &Product, extra: Extra) -> Result<(), ExecError> {
    let Product { m, n, k, .. } = *product;
    if !there::<K>(bench) {
        return Ok(());
    }
    let result = Destination::Halves(bench.exec.alloc("copy", m * n / 2)?);
    let stored = StoredProduct { product: *product, result, halved_activations: true };
    let kernel = K::of(extra, &[stored]).expect("sizes that fit");
    bench.sequence(K::DECL.name, &format!("{m} x {n} x {k}"), operations(product), move |exec, _| {
        exec.launch(Lane::MAIN, &kernel)
    })
}

/// The largest products of P2's trunk (SPEC section 9), with operands in f32 and in bf16.
fn wide(bench: &mut Bench) -> Result<(), ExecError> {
    const ROWS: usize = 16384;
    const WIDE: usize = 512;
    let forward = product(bench, (2 * ROWS, WIDE, WIDE), [WIDE; 3], WIDE)?;
    data::<GemmNtBf16Group>(bench, &forward, Extra::Bias(SLOPE))?;
    stored::<GemmNtBf16Stored>(bench, &forward, Extra::Bias(SLOPE))?;
    let backward = product(bench, (ROWS, WIDE, WIDE), [WIDE; 3], ROWS * WIDE)?;
    data::<GemmNnBf16Group>(bench, &backward, Extra::Activations(SLOPE))?;
    stored::<GemmNnBf16Stored>(bench, &backward, Extra::Activations(SLOPE))?;
    const SPLITS: usize = 8;
    let gradient = gradient(bench, WIDE, ROWS, SPLITS)?;
    weight::<GemmTnBf16Group>(bench, &gradient, SPLITS)?;
    weight::<GemmTnBf16Stored>(bench, &gradient, SPLITS)?;

    let len = 2 * ROWS * WIDE;
    let to = bench.random("halves", len / 2)?;
    let halve = Halve { len: len as u32, from: forward.a.0.into(), to: to.into() };
    bench.sequence(
        "halve",
        &format!("{len} numbers"),
        Throughput::Bytes(6 * len as u64),
        move |exec, _| exec.launch(Lane::MAIN, &halve),
    )?;
    let (d, h) = (forward.a.0.into(), forward.c.0.into());
    let through = HalveLrelu { len: len as u32, slope: SLOPE, d, h, to: to.into() };
    bench.sequence(
        "halve_lrelu",
        &format!("{len} numbers"),
        Throughput::Bytes(10 * len as u64),
        move |exec, _| exec.launch(Lane::MAIN, &through),
    )
}

fn main() -> ExitCode {
    device::run(|bench| {
        let forward = product(bench, (2 * BATCH, WIDTH, WIDTH), [WIDTH; 3], WIDTH)?;
        macro_rules! forward {
            ($($kernel:ident)*) => { $(data::<gpu::kernels::gemm::$kernel>(bench, &forward, Extra::Bias(SLOPE))?;)* };
        }
        forward!(GemmNtFp32Huge GemmNtFp32Large GemmNtFp32Medium GemmNtFp32Small);
        forward!(GemmNtTf32Huge GemmNtTf32Large GemmNtTf32Medium GemmNtTf32Small);
        forward!(GemmNtBf16Group GemmNtBf16Huge GemmNtBf16Large GemmNtBf16Medium GemmNtBf16Small);

        let backward = product(bench, (BATCH, WIDTH, 2 * WIDTH), [2 * WIDTH, WIDTH, WIDTH], BATCH * WIDTH)?;
        macro_rules! backward {
            ($($kernel:ident)*) => { $(data::<gpu::kernels::gemm::$kernel>(bench, &backward, Extra::Activations(SLOPE))?;)* };
        }
        backward!(GemmNnFp32Huge GemmNnFp32Large GemmNnFp32Medium GemmNnFp32Small);
        backward!(GemmNnTf32Huge GemmNnTf32Large GemmNnTf32Medium GemmNnTf32Small);
        backward!(GemmNnBf16Group GemmNnBf16Huge GemmNnBf16Large GemmNnBf16Medium GemmNnBf16Small);

        const SPLITS: usize = 4;
        let gradient = gradient(bench, WIDTH, BATCH, SPLITS)?;
        macro_rules! gradient {
            ($($kernel:ident)*) => { $(weight::<gpu::kernels::gemm::$kernel>(bench, &gradient, SPLITS)?;)* };
        }
        gradient!(GemmTnFp32Huge GemmTnFp32Large GemmTnFp32Medium GemmTnFp32Small);
        gradient!(GemmTnTf32Huge GemmTnTf32Large GemmTnTf32Medium GemmTnTf32Small);
        gradient!(GemmTnBf16Group GemmTnBf16Huge GemmTnBf16Large GemmTnBf16Medium GemmTnBf16Small);
        wide(bench)
    })
}
