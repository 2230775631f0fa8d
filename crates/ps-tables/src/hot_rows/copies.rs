//! The values of rows, each with the number of the last change that it contains.

/// The copies of rows, by the position of each row in a list of ids. Changes have ascending numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    row_bytes: usize,
    /// The bytes of the rows, whether there is a copy or not.
    bytes: Vec<u8>,
    /// The last change that each copy contains; `None` if there is no copy.
    changes: Vec<Option<u64>>,
}

impl Copies {
    /// Creates room for `rows` rows of `row_bytes` bytes, without a copy of any.
    pub fn new(row_bytes: usize, rows: usize) -> Self {
        Self { row_bytes, bytes: vec![0; row_bytes * rows], changes: vec![None; rows] }
    }

    /// Returns the row at a position if its copy contains the change with this number.
    pub fn get(&self, at: usize, change: u64) -> Option<&[u8]> {
        let copied = self.changes.get(at).copied().flatten();
        self.bytes.get(at * self.row_bytes..(at + 1) * self.row_bytes).filter(|_| copied == Some(change))
    }

    /// Replaces a row, which contains the change with this number.
    pub fn replace(&mut self, at: usize, change: u64, row: &[u8]) {
        let to = self.bytes.get_mut(at * self.row_bytes..(at + 1) * self.row_bytes);
        if let (Some(to), Some(copied)) = (to.filter(|to| to.len() == row.len()), self.changes.get_mut(at)) {
            to.copy_from_slice(row);
            *copied = Some(change);
        }
    }

    /// Records that a change has not changed a row. Has no effect unless the copy contains the change before.
    pub fn renew(&mut self, at: usize, change: u64) {
        let copied = self.changes.get_mut(at).into_iter().flatten();
        copied.filter(|copied| **copied + 1 == change).for_each(|copied| *copied = change);
    }

    /// Discards all copies.
    pub fn clear(&mut self) {
        self.changes.fill(None);
    }

    /// Returns the number of copies that contain the change with this number.
    pub fn count(&self, change: u64) -> usize {
        self.changes.iter().filter(|copied| **copied == Some(change)).count()
    }

    /// Returns `true` if a copy contains the change with this number.
    pub fn any(&self, change: u64) -> bool {
        self.changes.contains(&Some(change))
    }
}
