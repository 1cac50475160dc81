//! Copies in bf16 of what the main network's largest products read (`gpu::kernels::gemm`, module `stored`): the batch, the
//! parameters, trunk activations, features, and the gradients on their way back. Who writes a buffer that has one writes its copy
//! too, in the same launch or in the next one; what nothing reads in f32 is in its copy alone.

use cuda_std::{Buf, Kernel};
use gpu::kernels::gemm::{Destination, GemmNtBf16Stored};
use gpu::kernels::halve::Halve;
use settings::Precision;

use crate::error::ExecError;
use crate::exec::{Epilogue, Exec, Lane, Memory, Product};
use crate::gemm::WeightGradient;
use crate::gemm::stored::{Stored, StoredGradient};
use crate::step::buffers::StepBuffers;
use crate::step::shape::{Matmul, StepShape};

/// Most buffers with a copy.
const MOST: usize = 17;
/// Numbers that a piece of 16 bytes of a copy has.
const OCTET: usize = 8;

/// A buffer and its copy.
#[derive(Clone, Copy, Debug)]
struct Pair {
    of: Buf<f32>,
    /// Element i of the buffer is half of word i / 2.
    copy: Buf<f32>,
    /// Products write the copy alone, and all that read it read the copy.
    only: bool,
}

/// Which buffers have a copy, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    pairs: [Pair; MOST],
    len: usize,
}

impl Copies {
    fn new() -> Self {
        Self { pairs: [Pair { of: Buf::NULL, copy: Buf::NULL, only: false }; MOST], len: 0 }
    }

    fn add(
        &mut self,
        memory: &mut impl Memory,
        name: &str,
        of: Buf<f32>,
        only: bool,
    ) -> Result<(), ExecError> {
        let copy = memory.alloc(&format!("{name}.bf16"), of.len().div_ceil(2).next_multiple_of(4))?;
        self.pairs[self.len] = Pair { of, copy, only };
        self.len += 1;
        Ok(())
    }

    /// The pair that a part of a buffer belongs to, its copy cut to what begins with the part.
    fn pair(&self, part: Buf<f32>) -> Option<Pair> {
        let inside =
            |pair: &&Pair| (pair.of.addr()..pair.of.addr() + 4 * pair.of.len() as u64).contains(&part.addr());
        let pair = self.pairs[..self.len].iter().find(inside)?;
        let first = (part.addr() - pair.of.addr()) as usize / 4;
        // In the midst of a piece nothing can be read.
        let copy = pair.copy;
        first
            .is_multiple_of(OCTET)
            .then(|| Pair { copy: copy.slice(first / 2, copy.len() - first / 2), ..*pair })
    }

    /// The copy of a part of a buffer, from its first number to the end of the buffer's copy.
    pub fn of(&self, part: Buf<f32>) -> Option<Buf<f32>> {
        self.pair(part).map(|pair| pair.copy)
    }

    /// Whether a part of a buffer is in its copy alone.
    fn only(&self, part: Buf<f32>) -> bool {
        self.pair(part).is_some_and(|pair| pair.only)
    }

    /// The products with the copies of their operands and results, where all operands have one; an error where one has none,
    /// but another one is nowhere else.
    pub fn group(&self, products: &[Product]) -> Result<Option<Vec<Stored>>, ExecError> {
        let activations = |product: &Product| match product.epilogue {
            Epilogue::LreluBackward(h, _) => self.pair(h).filter(|pair| pair.only),
            _ => None,
        };
        let stored = |product: &Product| {
            let (a, b) = (self.of(product.a)?, self.of(product.b)?);
            let result = match self.pair(product.c) {
                Some(Pair { copy, only: true, .. }) => Destination::Halves(copy),
                Some(Pair { copy, .. }) => Destination::Both(copy),
                None => Destination::Floats,
            };
            Some(Stored {
                product: *product,
                a,
                b,
                activations: activations(product).map(|pair| pair.copy),
                result,
            })
        };
        let nowhere = |product: &Product| {
            self.only(product.a) || self.only(product.b) || activations(product).is_some()
        };
        let label = products.iter().find(|product| nowhere(product)).map(|product| product.label);
        all_or_none(products.iter().map(stored).collect(), label)
    }

    /// The layers' weight gradients with the copies of dY and X, as [`Self::group`] has products.
    pub fn gradients(&self, layers: &[WeightGradient]) -> Result<Option<Vec<StoredGradient>>, ExecError> {
        let stored = |layer: &WeightGradient| Some((*layer, self.of(layer.d_y)?, self.of(layer.x)?));
        let nowhere = |layer: &&WeightGradient| self.only(layer.d_y) || self.only(layer.x);
        let label = layers.iter().find(nowhere).map(|layer| layer.label);
        all_or_none(layers.iter().map(stored).collect(), label)
    }

    /// Rounds the first `len` numbers of a buffer anew, if it has a copy.
    pub fn refresh<E: Exec>(
        &self,
        exec: &mut E,
        lane: Lane,
        buffer: Buf<f32>,
        len: usize,
    ) -> Result<(), ExecError> {
        let Some(copy) = self.of(buffer) else { return Ok(()) };
        // A multiple of eight: see `suits_copies`.
        let halve =
            Halve { len: len as u32, from: buffer.slice(0, len).into(), to: copy.slice(0, len / 2).into() };
        exec.launch(lane, &halve)
    }
}

/// What a launch reads in bf16; where that is not `all`, nothing, unless something of it, called `nowhere`, is not in f32.
fn all_or_none<T>(all: Option<Vec<T>>, nowhere: Option<&'static str>) -> Result<Option<Vec<T>>, ExecError> {
    match (&all, nowhere) {
        (None, Some(label)) => Err(ExecError::Product {
            label,
            problem: "an operand is in bf16 alone, and another one of its launch in f32 alone".into(),
        }),
        _ => Ok(all),
    }
}

impl StepShape {
    /// Whether all matrices that copies are made of can be read in pieces of eight numbers, and nothing else writes them than
    /// what knows of the copies: the Mamba-2 block's trunk, the noisy heads and the vaccine's second batch do not.
    pub fn suits_copies(&self) -> bool {
        let layers = [self.trunk1, self.trunk2, self.heads1];
        let eights = |number: usize| number.is_multiple_of(OCTET);
        self.matmul == Matmul::Rust
            && self.precision == Precision::Bf16
            && !self.parts.mamba.enabled
            && !self.model.noisy
            && !self.parts.vaccine.enabled
            && eights(self.stride)
            && eights(self.pre)
            && self.trunk1.inputs == self.stride
            && layers.iter().all(|l| eights(l.inputs) && eights(l.outputs) && eights(l.weight))
    }
}

/// Allocates the copies of `b`, where the shape wants them and the loaded image has the kernels.
pub fn alloc(
    memory: &mut (impl Memory + Exec),
    shape: &StepShape,
    b: &StepBuffers,
) -> Result<Option<Copies>, ExecError> {
    if !(shape.copies && shape.suits_copies() && memory.has(&GemmNtBf16Stored::DECL)) {
        return Ok(None);
    }
    let mut copies = Copies::new();
    let main = main_len(shape);
    copies.add(memory, "batch.x", b.batch.x, false)?;
    copies.add(memory, "online", b.parameters.online.slice(0, main), false)?;
    copies.add(memory, "target", b.parameters.target.slice(0, main), false)?;
    for (name, a) in [("online", &b.online), ("target", &b.target)] {
        copies.add(memory, &format!("{name}.h1"), a.h1, true)?;
        // The IQN head and others read them in f32.
        copies.add(memory, &format!("{name}.features"), a.features, false)?;
    }
    let parts = b.parts.as_ref();
    let cql = parts.and_then(|parts| parts.cql.as_ref()).map(|cql| ("cql", cql));
    for (name, term) in [("c51", &b.c51)].into_iter().chain(cql) {
        copies.add(memory, &format!("{name}.d_pre"), term.d_pre, shape.glu())?;
        copies.add(memory, &format!("{name}.d_h2"), term.d_h2, true)?;
        copies.add(memory, &format!("{name}.d_h1"), term.d_h1, true)?;
    }
    if let Some(iqn) = parts.and_then(|parts| parts.iqn.as_ref()) {
        copies.add(memory, "iqn.d_h2", iqn.d_h2, false)?;
        copies.add(memory, "iqn.d_h1", iqn.d_h1, true)?;
    }
    if let Some(auxiliary) = parts.and_then(|parts| parts.auxiliary.as_ref()) {
        copies.add(memory, "auxiliary.d_h2", auxiliary.d_h2, false)?;
        copies.add(memory, "auxiliary.d_h1", auxiliary.d_h1, true)?;
    }
    Ok(Some(copies))
}

/// Parameters that are copied: the trunk and the heads' first layer, which come first in the flat buffer.
fn main_len(shape: &StepShape) -> usize {
    shape.heads1.weight + shape.heads1.inputs * shape.heads1.outputs
}

/// Rounds the batch, on the main lane. What is copied besides it and the parameters is written later in the step.
pub fn batch<E: Exec>(exec: &mut E, b: &StepBuffers) -> Result<(), ExecError> {
    let Some(copies) = &b.copies else { return Ok(()) };
    copies.refresh(exec, Lane::MAIN, b.batch.x, b.batch.x.len())
}

/// Rounds each network's parameters, on the lane of its pass.
pub fn parameters<E: Exec>(exec: &mut E, shape: &StepShape, b: &StepBuffers) -> Result<(), ExecError> {
    let Some(copies) = &b.copies else { return Ok(()) };
    let main = main_len(shape);
    copies.refresh(exec, Lane::TARGET, b.parameters.target, main)?;
    copies.refresh(exec, Lane::MAIN, b.parameters.online, main)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::EmulatedExec;
    use crate::exec::Form;

    #[test]
    fn a_part_of_a_buffer_has_that_part_of_its_copy() {
        let mut exec = EmulatedExec::new(1);
        let (plain, other): (Buf<f32>, Buf<f32>) =
            (exec.alloc("plain", 64).unwrap(), exec.alloc("other", 64).unwrap());
        let mut copies = Copies::new();
        copies.add(&mut exec, "plain", plain, false).unwrap();
        let whole = copies.of(plain).unwrap();
        assert_eq!(whole.len(), 32);
        let part = copies.of(plain.slice(24, 8)).unwrap();
        assert_eq!((part.addr(), part.len()), (whole.addr() + 48, 20));
        assert!(copies.of(plain.slice(20, 8)).is_none(), "in the midst of a piece");
        assert!(copies.of(other).is_none());
    }

    #[test]
    fn refreshed_is_rounded() {
        let mut exec = EmulatedExec::new(1);
        let plain: Buf<f32> = exec.alloc("plain", 16).unwrap();
        let mut copies = Copies::new();
        copies.add(&mut exec, "plain", plain, false).unwrap();
        let values: Vec<f32> = (0..16).map(|i| 1.0 + i as f32 / 512.0).collect();
        exec.upload(plain, &values).unwrap();
        copies.refresh(&mut exec, Lane::MAIN, plain, 16).unwrap();
        let copy = exec.download(copies.of(plain).unwrap()).unwrap();
        let halves = copy.iter().flat_map(|word| [word.to_bits() as u16, (word.to_bits() >> 16) as u16]);
        let expected: Vec<u16> = values.iter().map(|&x| half::bf16::from_f32(x).to_bits()).collect();
        assert_eq!(halves.collect::<Vec<_>>(), expected);
    }

    /// A launch reads all of its operands in one form.
    #[test]
    fn what_is_in_bf16_alone_is_not_read_in_f32() {
        let mut exec = EmulatedExec::new(1);
        let mut buffer = |name: &str| -> Buf<f32> { exec.alloc(name, 64).unwrap() };
        let (a, b, c, h) = (buffer("a"), buffer("b"), buffer("c"), buffer("h"));
        let product = Product {
            label: "trunk2",
            form: Form::Nn,
            m: 8,
            n: 8,
            k: 8,
            a,
            lda: 8,
            b,
            ldb: 8,
            c,
            ldc: 8,
            epilogue: Epilogue::LreluBackward(h, 0.01),
            precision: Precision::Bf16,
        };
        let mut copies = Copies::new();
        copies.add(&mut exec, "a", a, true).unwrap();
        let problem = copies.group(&[product]).unwrap_err().to_string();
        assert!(problem.contains("trunk2") && problem.contains("in bf16 alone"), "{problem}");
        copies.add(&mut exec, "b", b, false).unwrap();
        let stored = copies.group(&[product]).unwrap().expect("both operands have copies");
        assert!(matches!((stored[0].result, stored[0].activations), (Destination::Floats, None)));
        copies.add(&mut exec, "c", c, true).unwrap();
        copies.add(&mut exec, "h", h, true).unwrap();
        let stored = copies.group(&[product]).unwrap().expect("both operands have copies");
        assert!(matches!((stored[0].result, stored[0].activations), (Destination::Halves(_), Some(_))));
        // Activations in bf16 alone are as bad as an operand, and what has no copy at all is as it was.
        let without = Product { a: h, b: c, ..product };
        assert!(copies.group(&[without]).unwrap().is_some());
        let plain = Copies::new();
        assert!(plain.group(&[product]).unwrap().is_none());
        // Weight gradients as well.
        let other: Buf<f32> = exec.alloc("other", 64).unwrap();
        let (rows, outputs, inputs) = (8, 8, 8);
        let label = "trunk2";
        let layer = WeightGradient {
            label,
            rows,
            outputs,
            inputs,
            d_y: c,
            ldy: 8,
            x: h,
            ldx: 8,
            weight: 0,
            bias: 64,
            precision: Precision::Bf16,
        };
        assert!(copies.gradients(&[layer]).unwrap().is_some());
        let problem = copies.gradients(&[WeightGradient { d_y: other, ..layer }]).unwrap_err().to_string();
        assert!(problem.contains("trunk2") && problem.contains("in bf16 alone"), "{problem}");
        assert!(plain.gradients(&[layer]).unwrap().is_none());
    }
}
