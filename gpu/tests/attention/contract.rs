//! Launches that must be refused, with the relation that they break.

use cuda_std::emulator::HostBuf;
use cuda_std::{Buf, Kernel};
use gpu::kernels::attention::{
    AttentionApply, AttentionContext, MAX_COLUMNS, Plane, columns, context_columns,
};

/// A launch of the context kernel over shared zeros.
fn context(buffer: Buf<f32>, rows: u32, kept: u32, stride: u32, bars: u32) -> AttentionContext {
    AttentionContext {
        rows,
        kept,
        stride,
        features: 3,
        bars,
        heads: 2,
        states: buffer.into(),
        scores: buffer.into(),
        probabilities: buffer.into(),
        context: buffer.into(),
    }
}

#[test]
fn context_refuses() {
    let buffer = HostBuf::<f32>::zeroed(64);
    let buf = buffer.buf();
    assert_eq!(context(buf, 4, 2, 6, 2).check(), Ok(()));
    let broken = |kernel: AttentionContext| match kernel.check() {
        Err(error) => error.to_string(),
        Ok(()) => panic!("{kernel:?} is accepted"),
    };
    assert!(broken(context(buf, 0, 0, 6, 2)).contains("rows > 0"));
    assert!(broken(context(buf, 4, 5, 6, 2)).contains("kept <= rows"));
    assert!(broken(context(buf, 4, 2, 5, 2)).contains("stride >= bars * features"));
    assert!(broken(context(buf, 7, 2, 6, 2)).contains("context.len()"));
    assert!(broken(context(buf, 4, 2, 6, 0)).contains("shape_fits"));
    assert!(broken(context(buf, 4, 2, 900, MAX_COLUMNS)).contains("shape_fits"));
}

#[test]
fn apply_refuses_heads_that_do_not_divide_the_width() {
    let buffer = HostBuf::<f32>::zeroed(400);
    let apply = |heads| AttentionApply {
        rows: 2,
        width: 10,
        features: 2,
        bars: 2,
        heads,
        hidden: buffer.buf().into(),
        context: buffer.buf().into(),
        mix: buffer.buf().into(),
        output_bias: buffer.buf().into(),
        gate: buffer.buf().into(),
        applied: buffer.buf().into(),
    };
    assert_eq!(apply(5).check(), Ok(()));
    let error = apply(3).check().expect_err("3 does not divide 10").to_string();
    assert!(error.contains("attention_apply") && error.contains("shape_fits"), "{error}");
}

#[test]
fn a_plane_holds_its_parts_one_after_the_other() {
    let (width, features, bars, heads) = (21, 5, 7, 3);
    let tokens = heads * columns(features, bars);
    let plane = Plane::new(width, features, bars, heads);
    assert_eq!(plane.output, width * context_columns(features, bars, heads));
    assert!(plane.scores >= plane.output + width && plane.last >= plane.scores + tokens * features);
    assert!(plane.len >= plane.last + tokens && plane.len.is_multiple_of(4));
    assert!(plane.len - (plane.output + width + tokens * (features + 1)) <= 9);
}
