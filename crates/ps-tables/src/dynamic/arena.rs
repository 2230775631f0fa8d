//! Memory for rows that are added and removed.

/// The number of rows that are allocated together. It is small, so that little memory is left unused. Rows never move.
pub(crate) const CHUNK: usize = 128;

/// A store of rows of the same width. Indices of removed rows are reused.
#[derive(Debug)]
pub(super) struct Arena<T> {
    width: usize,
    chunks: Vec<Vec<T>>,
    /// The number of row indices that were ever assigned, including the free ones.
    rows: u32,
    free: Vec<u32>,
}

impl<T: Copy + Default> Arena<T> {
    pub(super) fn new(width: usize) -> Self {
        Self { width, chunks: Vec::new(), rows: 0, free: Vec::new() }
    }

    /// Adds a row, and returns its index; `None` if all indices are in use. The row may contain the values of a removed
    /// row, so the caller must fill it.
    pub(super) fn add(&mut self) -> Option<u32> {
        if let Some(row) = self.free.pop() {
            return Some(row);
        }
        let row = self.rows;
        self.rows = row.checked_add(1)?;
        if row as usize / CHUNK == self.chunks.len() {
            self.chunks.push(vec![T::default(); CHUNK * self.width]);
        }
        Some(row)
    }

    pub(super) fn free_row(&mut self, row: u32) {
        self.free.push(row);
    }

    pub(super) fn row(&self, row: u32) -> &[T] {
        let (chunk, at) = self.location(row);
        &self.chunks[chunk][at..at + self.width]
    }

    pub(super) fn row_mut(&mut self, row: u32) -> &mut [T] {
        let (chunk, at) = self.location(row);
        &mut self.chunks[chunk][at..at + self.width]
    }

    /// Returns the number of rows that can be added before more memory is allocated.
    pub(super) fn spare_rows(&self) -> usize {
        self.free.len() + self.chunks.len() * CHUNK - self.rows as usize
    }

    pub(super) fn bytes(&self) -> usize {
        let rows = self.chunks.len() * CHUNK * self.width * std::mem::size_of::<T>();
        rows + self.free.capacity() * std::mem::size_of::<u32>()
    }

    fn location(&self, row: u32) -> (usize, usize) {
        (row as usize / CHUNK, row as usize % CHUNK * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_values_and_are_reused() {
        let mut arena = Arena::new(3);
        let rows: Vec<u32> = (0..300).map(|_| arena.add().unwrap()).collect();
        assert_eq!(rows, (0..300).collect::<Vec<_>>());
        rows.iter().for_each(|row| arena.row_mut(*row).fill(*row as f32));
        arena.free_row(17);
        assert_eq!(arena.add(), Some(17));
        assert_eq!(arena.add(), Some(300));
        assert!((18..300).all(|row| arena.row(row) == [row as f32; 3]));
        assert_eq!(arena.bytes() / 4, 3 * CHUNK * 3 + arena.free.capacity());
    }
}
