//! The types that buffers and shared memory hold.

/// A plain number that a buffer can hold: f32, f64, u32, i32, u64, u16 or u8. Every bit pattern is a value.
pub trait Element: Copy + Default + Send + Sync + 'static + sealed::Sealed {}

mod sealed {
    /// Keeps [`super::Element`] to the types whose device access is implemented.
    pub trait Sealed {}
}

macro_rules! element {
    ($($ty:ty),*) => { $(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {}
    )* };
}

element!(f32, f64, u32, i32, u64, u16, u8);
