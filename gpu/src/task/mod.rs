//! Control tasks as pure functions: the device's kernels and the CPU's [`VecTask`] call the same ones, so an episode has
//! the same bits on every path. A task of one's own is an implementation of [`Environment`] and a line in the list at
//! the end of this file (`docs/ENVIRONMENTS.md`).
//!
//! Arithmetic: states and rewards are f64, written with plain `+ - * /`, which neither rustc's x86 nor its PTX back end
//! contracts to fused operations, and the sines of [`trigonometry`]. A value becomes f32 once, when it is stored as a
//! reward or an observation.
//!
//! Shapes: E environments, S floats of an observation.

mod acrobot;
mod bit_flip;
mod cart_pole;
mod environment;
mod episode;
pub mod hindsight;
mod mountain_car;
pub mod trigonometry;
#[cfg(not(target_arch = "nvptx64"))]
mod vec_task;

pub use acrobot::Acrobot;
pub use bit_flip::BitFlip;
pub use cart_pole::CartPole;
pub use environment::{Environment, Goal, Outcome, Random, Spec, Words};
pub use episode::{COUNTERS, Episode, LOG_FIELDS, MAX_STATE, WORDS, advance, begin};
pub use mountain_car::MountainCar;
#[cfg(not(target_arch = "nvptx64"))]
pub use vec_task::{Finished, TaskError, VecTask, check_counters};

/// Code that works on any environment; [`Task::visit`] calls it with the one that is meant.
pub trait Visitor {
    /// What it returns.
    type Out;
    /// Works on `environment`.
    fn visit<E: Environment>(self, environment: &E) -> Self::Out;
}

/// A task as kernels get it: plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Place in the list of environments.
    pub kind: u32,
    /// Size of the environment, in its own unit; one without a size does not look at it.
    pub size: u32,
    /// Steps after which an episode is truncated.
    pub limit: u32,
}

/// Lists the environments: their numbers, for kernels, and their names, for people.
macro_rules! environments {
    ($($number:literal => $environment:ident,)*) => {
        /// Names of all tasks, by their numbers.
        pub const NAMES: &[&str] = &[$(<$environment as Environment>::NAME,)*];

        $(const _: () = assert!(
            <<$environment as Environment>::State as Words>::COUNT <= MAX_STATE,
            "a state has more words than there is room for"
        );)*

        impl Task {
            /// Calls `visitor` with the environment; `None` for a number that is not in the list.
            #[inline(always)]
            pub fn visit<V: Visitor>(&self, visitor: V) -> Option<V::Out> {
                match self.kind {
                    $($number => Some(visitor.visit(&$environment::new(self.size))),)*
                    _ => None,
                }
            }

            /// The task of a name, with its own size and limit where these are 0.
            ///
            /// # Errors
            /// What is wrong with name, size or limit, with the keys of the configuration.
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn named(name: &str, size: u32, limit: u32) -> Result<Self, TaskError> {
                let kind = NAMES.iter().position(|known| *known == name).ok_or_else(|| TaskError::Name(name.into()))?;
                let sizes = [$(<$environment as Environment>::SIZES,)*][kind];
                let task = Self { kind: kind as u32, size: if size == 0 { sizes.default } else { size }, limit };
                if !(sizes.least..=sizes.most).contains(&task.size) {
                    return Err(TaskError::Size { name: NAMES[kind], size, least: sizes.least, most: sizes.most });
                }
                let limit = if limit == 0 { task.spec().limit } else { limit };
                Ok(Self { limit, ..task })
            }
        }
    };
}

/// Sizes that an environment may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Smallest.
    pub least: u32,
    /// Largest.
    pub most: u32,
    /// Where the configuration says 0.
    pub default: u32,
}

impl Sizes {
    /// Of an environment that has no size.
    pub const NONE: Self = Self { least: 0, most: 0, default: 0 };
}

impl Task {
    /// What the environment's observations and actions are; all zero for a number that is not in the list.
    pub fn spec(&self) -> Spec {
        struct Asks;
        impl Visitor for Asks {
            type Out = Spec;
            fn visit<E: Environment>(self, environment: &E) -> Spec {
                environment.spec()
            }
        }
        self.visit(Asks).unwrap_or_default()
    }

    /// Its name.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn name(&self) -> &'static str {
        NAMES.get(self.kind as usize).copied().unwrap_or("unknown")
    }
}

environments! {
    0 => CartPole,
    1 => Acrobot,
    2 => BitFlip,
    3 => MountainCar,
}
