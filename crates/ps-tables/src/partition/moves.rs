//! The moves from one partition to another.

use super::{RowLocation, RowPartition};

/// A run of rows that is contiguous in both partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// The location of the first row in the old partition.
    pub from: RowLocation,
    /// The location of the first row in the new partition.
    pub to: RowLocation,
    /// The number of rows.
    pub rows: usize,
}

/// An iterator over all moves from one partition to another, in ascending order of the table's rows; see
/// [`RowPartition::moves`].
#[derive(Clone, Debug)]
pub struct Moves {
    from: RowPartition,
    to: RowPartition,
    next: usize,
}

impl Moves {
    pub(super) fn new(from: RowPartition, to: RowPartition) -> Self {
        Self { from, to, next: 0 }
    }
}

impl Iterator for Moves {
    type Item = Move;

    fn next(&mut self) -> Option<Move> {
        if self.next >= self.from.rows() {
            return None;
        }
        let (from, to) = (self.from.location(self.next), self.to.location(self.next));
        let rows = self.from.run(self.next).min(self.to.run(self.next));
        self.next += rows;
        Some(Move { from, to, rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, PartitionStrategy};
    use proptest::prelude::*;

    #[test]
    fn ranges_are_moved_whole() {
        let moves: Vec<_> = RowPartition::div(10, 2).moves(RowPartition::div(10, 3)).unwrap().collect();
        let at = |shard, row| RowLocation { shard, row };
        assert_eq!(
            moves,
            [
                Move { from: at(0, 0), to: at(0, 0), rows: 4 },
                Move { from: at(0, 4), to: at(1, 0), rows: 1 },
                Move { from: at(1, 0), to: at(1, 1), rows: 2 },
                Move { from: at(1, 2), to: at(2, 0), rows: 3 },
            ]
        );
        assert_eq!(RowPartition::div(0, 2).moves(RowPartition::div(0, 3)).unwrap().count(), 0);
        let other = RowPartition::div(10, 2).moves(RowPartition::div(11, 2));
        assert!(matches!(other, Err(Error::Rows { expected: 10, found: 11, .. })));
    }

    proptest! {
        #[test]
        fn all_rows_arrive_once(rows in 0usize..120, s in 1usize..9, t in 1usize..9, mods: (bool, bool)) {
            let of = |shards, by_turns: bool| {
                let strategy = if by_turns { PartitionStrategy::Mod } else { PartitionStrategy::Div };
                RowPartition::new(strategy, rows, shards)
            };
            let (from, to) = (of(s, mods.0), of(t, mods.1));
            let mut seen = Vec::new();
            let moves: Vec<_> = from.moves(to).unwrap().collect();
            for Move { from: source, to: target, rows } in &moves {
                for i in 0..*rows {
                    let row = from.row(RowLocation { row: source.row + i, ..*source });
                    prop_assert_eq!(to.row(RowLocation { row: target.row + i, ..*target }), row);
                    prop_assert!(source.row + i < from.len(source.shard) && target.row + i < to.len(target.shard));
                    seen.push(row);
                }
            }
            prop_assert_eq!(seen, (0..rows).collect::<Vec<_>>());
            if !mods.0 && !mods.1 {
                prop_assert!(moves.len() < from.shards() + to.shards());
            }
        }
    }
}
