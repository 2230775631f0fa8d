//! Memory for rows that are added and removed.

/// The number of rows that are allocated at once. Rows never move, and little memory is left unused.
pub(crate) const CHUNK: usize = 128;

/// Rows of one width. The numbers of removed rows are reused.
#[derive(Debug)]
pub(super) struct Arena<T> {
    width: usize,
    chunks: Vec<Vec<T>>,
    /// The number of row numbers that were given out, and the unused ones among them.
    rows: u32,
    free: Vec<u32>,
}

impl<T: Copy + Default> Arena<T> {
    pub(super) fn new(width: usize) -> Self {
        Self { width, chunks: Vec::new(), rows: 0, free: Vec::new() }
    }

    /// Returns the number of a row to be filled, or `None` if all numbers are in use.
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

    pub(super) fn give_back(&mut self, row: u32) {
        self.free.push(row);
    }

    pub(super) fn row(&self, row: u32) -> &[T] {
        let (chunk, at) = self.place(row);
        &self.chunks[chunk][at..at + self.width]
    }

    pub(super) fn row_mut(&mut self, row: u32) -> &mut [T] {
        let (chunk, at) = self.place(row);
        &mut self.chunks[chunk][at..at + self.width]
    }

    /// Returns the number of rows that can be added before memory is allocated.
    pub(super) fn room(&self) -> usize {
        self.free.len() + self.chunks.len() * CHUNK - self.rows as usize
    }

    pub(super) fn bytes(&self) -> usize {
        let rows = self.chunks.len() * CHUNK * self.width * std::mem::size_of::<T>();
        rows + self.free.capacity() * std::mem::size_of::<u32>()
    }

    fn place(&self, row: u32) -> (usize, usize) {
        (row as usize / CHUNK, row as usize % CHUNK * self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_what_is_in_them_and_come_again() {
        let mut arena = Arena::new(3);
        let rows: Vec<u32> = (0..300).map(|_| arena.add().unwrap()).collect();
        assert_eq!(rows, (0..300).collect::<Vec<_>>());
        rows.iter().for_each(|row| arena.row_mut(*row).fill(*row as f32));
        arena.give_back(17);
        assert_eq!(arena.add(), Some(17));
        assert_eq!(arena.add(), Some(300));
        assert!((18..300).all(|row| arena.row(row) == [row as f32; 3]));
        assert_eq!(arena.bytes() / 4, 3 * CHUNK * 3 + arena.free.capacity());
    }
}
