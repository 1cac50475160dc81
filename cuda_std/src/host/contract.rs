//! Launch contracts: checked arithmetic for the host-side expressions of a kernel, and the error of a launch
//! that breaks a relation. The functions here are called by the code that `#[kernel]` makes.

use std::fmt;

use crate::host::kernel::{Dim3, Kernel, KernelDecl};

/// A launch whose arguments break the kernel's contract. Nothing was launched.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct ContractError {
    /// Name of the kernel.
    pub kernel: &'static str,
    /// What is broken.
    pub breach: Breach,
    /// Every argument by name, in order.
    pub arguments: Vec<(&'static str, ArgumentValue)>,
}

/// What a launch breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A relation of `requires(..)`, as written, does not hold.
    Relation(&'static str),
    /// A relation overflows when it is evaluated with these arguments.
    Overflow(&'static str),
    /// The `grid` expression overflows, is zero in some direction or more than a device can launch.
    Grid(Dim3),
    /// The `shared` expression overflows or asks for more than any device has.
    Shared(u32),
    /// A buffer's address is not a multiple of its element's size.
    Alignment(&'static str),
}

/// An argument in an error message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgumentValue {
    /// An integer.
    Integer(i128),
    /// A floating-point number.
    Float(f64),
    /// A buffer.
    Buffer {
        /// Address of the first element.
        addr: u64,
        /// Elements.
        len: usize,
        /// Bytes per element.
        element: usize,
    },
}

macro_rules! argument_value {
    ($($ty:ty => $variant:ident($wide:ty)),* $(,)?) => { $(
        impl From<$ty> for ArgumentValue {
            fn from(value: $ty) -> ArgumentValue {
                ArgumentValue::$variant(<$wide>::from(value))
            }
        }
    )* };
}

argument_value!(
    u32 => Integer(i128), i32 => Integer(i128), u64 => Integer(i128), i64 => Integer(i128),
    f32 => Float(f64), f64 => Float(f64),
);

impl fmt::Display for ArgumentValue {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ArgumentValue::Integer(value) => write!(f, "= {value}"),
            ArgumentValue::Float(value) => write!(f, "= {value}"),
            ArgumentValue::Buffer { addr: 0, len, .. } => write!(f, ": null with {len} elements"),
            ArgumentValue::Buffer { len, .. } => write!(f, ": {len} elements"),
        }
    }
}

impl fmt::Display for ContractError {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "kernel {}: ", self.kernel)?;
        match self.breach {
            Breach::Relation(text) => write!(f, "`{text}` does not hold")?,
            Breach::Overflow(text) => write!(f, "`{text}` overflows")?,
            Breach::Grid(Dim3::OVERFLOW) => f.write_str("the number of blocks overflows")?,
            Breach::Grid(grid) => write!(
                f,
                "a grid of {grid} blocks cannot be launched (1 to {} in x, 1 to {} in y and z)",
                GRID_LIMIT.x, GRID_LIMIT.y
            )?,
            Breach::Shared(u32::MAX) => f.write_str("the size of the shared memory overflows")?,
            Breach::Shared(bytes) => write!(
                f,
                "{bytes} bytes of shared memory a block are more than any device has ({SHARED_LIMIT})"
            )?,
            Breach::Alignment(name) => write!(f, "the address of `{name}` is not aligned to its element")?,
        }
        for (i, (name, value)) in self.arguments.iter().enumerate() {
            let separator = if i == 0 { " with " } else { ", " };
            let space = if matches!(value, ArgumentValue::Buffer { .. }) { "" } else { " " };
            write!(f, "{separator}{name}{space}{value}")?;
        }
        Ok(())
    }
}

/// Most blocks in each direction (CUDA C Programming Guide, technical specifications per compute capability).
const GRID_LIMIT: Dim3 = Dim3 { x: i32::MAX as u32, y: 65_535, z: 65_535 };

/// Most dynamic shared memory of a block in bytes on any supported device (sm_90: 227 KiB). The launch on a
/// smaller device checks that device's own limit.
const SHARED_LIMIT: u32 = 227 * 1024;

/// The arguments of one kernel's launch, listed only when something is wrong.
pub type Values<'a> = &'a dyn Fn() -> Vec<(&'static str, ArgumentValue)>;

/// Checks one launch.
pub struct Report<'a> {
    decl: &'a KernelDecl,
    values: Values<'a>,
}

impl<'a> Report<'a> {
    /// For a launch of `decl` with the arguments that `values` lists.
    pub fn new(decl: &'a KernelDecl, values: Values<'a>) -> Report<'a> {
        Report { decl, values }
    }

    fn error(&self, breach: Breach) -> ContractError {
        ContractError { kernel: self.decl.name, breach, arguments: (self.values)() }
    }

    /// One `requires` relation: `None` when its evaluation overflowed.
    pub fn relation(&self, text: &'static str, holds: Option<bool>) -> Result<(), ContractError> {
        match holds {
            Some(true) => Ok(()),
            Some(false) => Err(self.error(Breach::Relation(text))),
            None => Err(self.error(Breach::Overflow(text))),
        }
    }

    /// Grid, shared memory and alignment.
    pub fn launch<K: Kernel>(&self, kernel: &K) -> Result<(), ContractError> {
        let grid = kernel.grid();
        let fits = |size: u32, limit: u32| (1..=limit).contains(&size);
        if !(fits(grid.x, GRID_LIMIT.x) && fits(grid.y, GRID_LIMIT.y) && fits(grid.z, GRID_LIMIT.z)) {
            return Err(self.error(Breach::Grid(grid)));
        }
        let shared = kernel.shared_bytes();
        if shared > SHARED_LIMIT {
            return Err(self.error(Breach::Shared(shared)));
        }
        for (name, value) in (self.values)() {
            if let ArgumentValue::Buffer { addr, element, .. } = value
                && !addr.is_multiple_of(element as u64)
            {
                return Err(self.error(Breach::Alignment(name)));
            }
        }
        Ok(())
    }
}

/// The value of a `grid` expression.
pub fn grid(grid: impl Into<Dim3>) -> Option<Dim3> {
    Some(grid.into())
}

/// The value of a `shared` expression.
pub fn shared_bytes(bytes: impl TryInto<u32>) -> Option<u32> {
    bytes.try_into().ok()
}

/// Numbers whose arithmetic says when it overflows.
pub trait Checked: Sized {
    /// a + b.
    fn checked_add(self, other: Self) -> Option<Self>;
    /// a - b.
    fn checked_sub(self, other: Self) -> Option<Self>;
    /// a * b.
    fn checked_mul(self, other: Self) -> Option<Self>;
    /// a / b; None for an integer b = 0.
    fn checked_div(self, other: Self) -> Option<Self>;
    /// a % b; None for an integer b = 0.
    fn checked_rem(self, other: Self) -> Option<Self>;
    /// -a.
    fn checked_neg(self) -> Option<Self>;
}

/// Unsigned numbers with a division that rounds up.
pub trait CheckedCeil: Sized {
    /// a / b rounded up; None for b = 0.
    fn checked_ceil(self, other: Self) -> Option<Self>;
}

/// A conversion that fails instead of cutting off.
pub trait CheckedCast<To> {
    /// The same number in the other type; a float gets the nearest value.
    fn checked_cast(self) -> Option<To>;
}

macro_rules! checked_integer {
    ($($ty:ident),*) => { $(
        impl Checked for $ty {
            fn checked_add(self, other: $ty) -> Option<$ty> { $ty::checked_add(self, other) }
            fn checked_sub(self, other: $ty) -> Option<$ty> { $ty::checked_sub(self, other) }
            fn checked_mul(self, other: $ty) -> Option<$ty> { $ty::checked_mul(self, other) }
            fn checked_div(self, other: $ty) -> Option<$ty> { $ty::checked_div(self, other) }
            fn checked_rem(self, other: $ty) -> Option<$ty> { $ty::checked_rem(self, other) }
            fn checked_neg(self) -> Option<$ty> { $ty::checked_neg(self) }
        }
        checked_cast!($ty => u8, u16, u32, i32, u64, i64, u128, i128, usize);
        impl CheckedCast<f32> for $ty {
            fn checked_cast(self) -> Option<f32> { Some(self as f32) }
        }
        impl CheckedCast<f64> for $ty {
            fn checked_cast(self) -> Option<f64> { Some(self as f64) }
        }
    )* };
}

macro_rules! checked_cast {
    ($from:ident => $($to:ident),*) => { $(
        impl CheckedCast<$to> for $from {
            fn checked_cast(self) -> Option<$to> { $to::try_from(self).ok() }
        }
    )* };
}

macro_rules! checked_float {
    ($($ty:ident),*) => { $(
        impl Checked for $ty {
            fn checked_add(self, other: $ty) -> Option<$ty> { Some(self + other) }
            fn checked_sub(self, other: $ty) -> Option<$ty> { Some(self - other) }
            fn checked_mul(self, other: $ty) -> Option<$ty> { Some(self * other) }
            fn checked_div(self, other: $ty) -> Option<$ty> { Some(self / other) }
            fn checked_rem(self, other: $ty) -> Option<$ty> { Some(self % other) }
            fn checked_neg(self) -> Option<$ty> { Some(-self) }
        }
        impl CheckedCast<f32> for $ty {
            fn checked_cast(self) -> Option<f32> { Some(self as f32) }
        }
        impl CheckedCast<f64> for $ty {
            fn checked_cast(self) -> Option<f64> { Some(self.into()) }
        }
    )* };
}

macro_rules! checked_ceil {
    ($($ty:ident),*) => { $(
        impl CheckedCeil for $ty {
            fn checked_ceil(self, other: $ty) -> Option<$ty> { (other != 0).then(|| $ty::div_ceil(self, other)) }
        }
    )* };
}

checked_integer!(u8, u16, u32, i32, u64, i64, u128, i128, usize);
checked_float!(f32, f64);
checked_ceil!(u8, u16, u32, u64, u128, usize);

/// a + b, None on overflow.
pub fn add<T: Checked>(a: T, b: T) -> Option<T> {
    a.checked_add(b)
}

/// a - b, None on overflow.
pub fn sub<T: Checked>(a: T, b: T) -> Option<T> {
    a.checked_sub(b)
}

/// a * b, None on overflow.
pub fn mul<T: Checked>(a: T, b: T) -> Option<T> {
    a.checked_mul(b)
}

/// a / b, None on division by zero or overflow.
pub fn div<T: Checked>(a: T, b: T) -> Option<T> {
    a.checked_div(b)
}

/// a % b, None on division by zero or overflow.
pub fn rem<T: Checked>(a: T, b: T) -> Option<T> {
    a.checked_rem(b)
}

/// -a, None on overflow.
pub fn neg<T: Checked>(a: T) -> Option<T> {
    a.checked_neg()
}

/// a / b rounded up, None on division by zero.
pub fn div_ceil<T: CheckedCeil>(a: T, b: T) -> Option<T> {
    a.checked_ceil(b)
}

/// `a as To`, None where `as` would cut off.
pub fn cast<From: CheckedCast<To>, To>(a: From) -> Option<To> {
    a.checked_cast()
}
