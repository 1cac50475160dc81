//! 64-bit FNV-1a, the fingerprint of data files in run records.
//!
//! Source: Fowler, Noll, Vo; offset basis 0xcbf29ce484222325, prime 0x100000001b3. One multiplication per
//! byte, no table, the same everywhere. It is a fingerprint against mix-ups, not against an adversary.

use std::io::{self, Read};

/// Running FNV-1a.
#[derive(Clone, Copy, Debug)]
pub struct Fnv64(u64);

impl Default for Fnv64 {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv64 {
    /// Takes more bytes in.
    pub fn update(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// The hash of all bytes so far.
    pub fn finish(self) -> u64 {
        self.0
    }
}

/// Hash of everything a reader gives, in constant memory.
pub(crate) fn hash_all(mut reader: impl Read) -> io::Result<u64> {
    let mut hash = Fnv64::default();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hash.finish()),
            n => hash.update(&buffer[..n]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        // From the authors' test suite (fnv64a): "", "a", "foobar".
        let cases: [(&[u8], u64); 3] =
            [(b"", 0xcbf2_9ce4_8422_2325), (b"a", 0xaf63_dc4c_8601_ec8c), (b"foobar", 0x8594_4171_f739_67e8)];
        for (bytes, expected) in cases {
            assert_eq!(hash_all(bytes).unwrap(), expected, "{bytes:?}");
        }
    }
}
