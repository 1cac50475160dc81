//! The spectral norm of the online trunk in the step (SPEC section 3, `gpu::kernels::spectral_norm`).

use gpu::kernels::spectral_norm::{SpectralColumns, SpectralRows, SpectralScale};

use crate::error::ExecError;
use crate::exec::{Exec, Lane};
use crate::step::buffers::StepBuffers;
use crate::step::parts::SpectralBuffers;
use crate::step::shape::StepShape;

/// Power iteration and scaling of the online trunk's weights, in place, on `lane`; the main lane waits for the first of its kernels
/// (see `record`).
pub(super) fn scale_trunk<E: Exec>(
    exec: &mut E,
    shape: &StepShape,
    b: &StepBuffers,
    lane: Lane,
) -> Result<(), ExecError> {
    let Some(s) = &b.spectral else { return Ok(()) };
    let SpectralBuffers { matrices: [matrix0, matrix1, matrix2, matrix3], u, v, y, z, sigma, .. } = *s;
    // The trunk comes first; what lies behind it is read beside this.
    let (stride, params) = (s.stride as u32, b.parameters.online.slice(0, shape.trunk_len()));
    if lane != Lane::MAIN {
        exec.after(lane, Lane::MAIN)?;
    }
    exec.launch(
        lane,
        &SpectralColumns {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            u: u.into(),
            y: y.into(),
        },
    )?;
    if lane != Lane::MAIN {
        exec.after(Lane::MAIN, lane)?;
    }
    exec.launch(
        lane,
        &SpectralRows {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            params: params.into(),
            y: y.into(),
            v: v.into(),
            z: z.into(),
        },
    )?;
    exec.launch(
        lane,
        &SpectralScale {
            matrix0,
            matrix1,
            matrix2,
            matrix3,
            stride,
            sigma_max: shape.parts.spectral.sigma_max,
            params: params.into(),
            z: z.into(),
            u: u.into(),
            sigma: sigma.into(),
        },
    )
}
