//! Which bytes a kernel or a product touches: contiguous ranges and strided blocks of a matrix.

use std::collections::BTreeMap;

/// `rows` rows of `row_bytes` bytes, whose first bytes are `stride` bytes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address of the first byte.
    pub address: u64,
    /// Number of rows.
    pub rows: u64,
    /// Bytes used in each row.
    pub row_bytes: u64,
    /// Bytes from one row to the next.
    pub stride: u64,
}

impl Extent {
    /// `bytes` bytes without a gap.
    pub fn contiguous(address: u64, bytes: u64) -> Self {
        Self { address, rows: 1, row_bytes: bytes, stride: bytes }
    }

    /// A block of a row-major f32 matrix: `rows` x `columns`, rows `ld` floats apart.
    pub fn matrix(address: u64, rows: usize, columns: usize, ld: usize) -> Self {
        Self { address, rows: rows as u64, row_bytes: 4 * columns as u64, stride: 4 * ld as u64 }
    }

    /// True when no byte is touched.
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.row_bytes == 0
    }

    /// Bytes from the first to the last one touched, gaps included.
    pub fn span(&self) -> u64 {
        if self.is_empty() { 0 } else { (self.rows - 1) * self.stride + self.row_bytes }
    }

    fn end(&self) -> u64 {
        self.address + self.span()
    }

    fn has_gaps(&self) -> bool {
        self.rows > 1 && self.row_bytes < self.stride
    }

    /// True when some byte belongs to both. Exact for equal strides and for contiguous ranges; for two blocks
    /// of different strides the gaps count as touched, so it may say true for disjoint ones, never the reverse.
    pub fn overlaps(&self, other: &Extent) -> bool {
        if self.is_empty() || other.is_empty() || self.end() <= other.address || other.end() <= self.address {
            return false;
        }
        match (self.has_gaps(), other.has_gaps()) {
            (false, false) => true,
            (true, false) => self.row_meets(other.address, other.end()),
            (false, true) => other.row_meets(self.address, self.end()),
            (true, true) if self.stride == other.stride => self.rows_meet(other),
            (true, true) => true,
        }
    }

    /// Whether some row meets [start, end): the first row that ends after `start` is the only candidate.
    fn row_meets(&self, start: u64, end: u64) -> bool {
        let row = if start < self.address + self.row_bytes {
            0
        } else {
            (start - self.address - self.row_bytes) / self.stride + 1
        };
        row < self.rows && self.address + row * self.stride < end
    }

    /// Whether two blocks of one stride share a byte. With d the difference of the row numbers (self's minus
    /// other's) and delta = other.address - self.address, rows meet iff -row_bytes < d stride - delta <
    /// other.row_bytes; only the two d around delta / stride can satisfy it.
    fn rows_meet(&self, other: &Extent) -> bool {
        let (stride, delta) = (self.stride as i128, other.address as i128 - self.address as i128);
        let below = delta.div_euclid(stride);
        [below, below + 1].into_iter().any(|d| {
            let x = d * stride - delta;
            -(self.row_bytes as i128) < x
                && x < other.row_bytes as i128
                && -(other.rows as i128) < d
                && d < self.rows as i128
        })
    }

    /// True when every byte of `other` certainly belongs to this extent too.
    pub fn covers(&self, other: &Extent) -> bool {
        self == other || (!self.has_gaps() && self.address <= other.address && other.end() <= self.end())
    }
}

/// Labels of allocations, found by address.
#[derive(Debug, Default)]
pub struct Ledger {
    blocks: BTreeMap<u64, Block>,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The label it was asked for under.
    pub label: String,
    /// Its length.
    pub bytes: u64,
}

impl Ledger {
    /// Notes an allocation; addresses come from an allocator, so blocks never overlap.
    pub fn insert(&mut self, address: u64, label: &str, bytes: u64) {
        self.blocks.insert(address, Block { label: label.to_owned(), bytes });
    }

    /// Label of the allocation that holds all `bytes` bytes at `address`, if one does.
    pub fn holder(&self, address: u64, bytes: u64) -> Option<&str> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        let end = address.checked_add(bytes)?;
        (end <= start + block.bytes).then_some(block.label.as_str())
    }

    /// Allocations by address.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.blocks.iter().map(|(&address, block)| (address, block))
    }

    /// Bytes of all allocations.
    pub fn total(&self) -> u64 {
        self.blocks.values().map(|block| block.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes themselves, as a reference for `overlaps` and `covers`.
    fn bytes(extent: &Extent) -> Vec<u64> {
        (0..extent.rows)
            .flat_map(|row| (0..extent.row_bytes).map(move |byte| (row, byte)))
            .map(|(row, byte)| extent.address + row * extent.stride + byte)
            .collect()
    }

    #[test]
    fn overlap_agrees_with_the_sets_of_bytes() {
        let mut seen = [0, 0];
        let blocks: Vec<Extent> = (0..14)
            .flat_map(|address| {
                [(1, 5, 5), (3, 2, 4), (2, 3, 4), (4, 1, 4), (2, 4, 4)].map(|(rows, row_bytes, stride)| {
                    Extent { address: 100 + address, rows, row_bytes, stride }
                })
            })
            .collect();
        for a in &blocks {
            for b in &blocks {
                let expected = bytes(a).iter().any(|byte| bytes(b).contains(byte));
                assert_eq!(a.overlaps(b), expected, "{a:?} {b:?}");
                if a.covers(b) {
                    assert!(bytes(b).iter().all(|byte| bytes(a).contains(byte)), "{a:?} {b:?}");
                }
                seen[usize::from(expected)] += 1;
            }
        }
        assert!(seen.iter().all(|&count| count > 500), "both answers are exercised: {seen:?}");
    }

    #[test]
    fn columns_of_different_heads_do_not_overlap() {
        let head = |first: u64| Extent::matrix(0x1000 + 4 * first, 1024, 128, 640);
        assert!(!head(0).overlaps(&head(128)));
        assert!(head(0).overlaps(&head(127)));
    }

    #[test]
    fn a_ledger_finds_the_block_that_holds_a_range() {
        let mut ledger = Ledger::default();
        ledger.insert(1000, "a", 100);
        ledger.insert(2000, "b", 8);
        assert_eq!(ledger.holder(1000, 100), Some("a"));
        assert_eq!(ledger.holder(1090, 11), None, "runs past the end");
        assert_eq!(ledger.holder(2007, 1), Some("b"));
        assert_eq!(ledger.holder(999, 1), None);
        assert_eq!(ledger.holder(u64::MAX, 2), None);
        assert_eq!(ledger.total(), 108);
    }
}
