//! Partitions of tables with a fixed number of rows.

use super::{Moves, Split};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The way in which rows are assigned to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PartitionStrategy {
    /// Contiguous ranges: 5 shards of 13 rows have 3, 3, 3, 2 and 2 rows.
    #[doc(alias = "div")]
    #[default]
    Div,
    /// Round-robin: row `r` is on shard `r mod n`, where `n` is the number of shards.
    #[doc(alias = "mod")]
    Mod,
}

/// The rows of a table, partitioned over shards.
///
/// ```
/// use distribute_ps_tables::{RowLocation, RowPartition};
///
/// let table = RowPartition::div(13, 5);
/// assert_eq!(table.ranges().collect::<Vec<_>>(), [0..3, 3..6, 6..9, 9..11, 11..13]);
/// assert_eq!(table.location(10), RowLocation { shard: 3, row: 1 });
///
/// let ids = table.split("embedding_lookup", &[12, 0, 10, 0])?;
/// assert_eq!((ids.of(0), ids.of(3), ids.of(4)), (&[0, 0][..], &[1][..], &[1][..]));
/// # Ok::<(), distribute_ps_tables::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(PartitionStrategy, usize, usize)", from = "(PartitionStrategy, usize, usize)")]
pub struct RowPartition {
    strategy: PartitionStrategy,
    rows: usize,
    shards: usize,
}

impl From<RowPartition> for (PartitionStrategy, usize, usize) {
    fn from(partition: RowPartition) -> Self {
        (partition.strategy, partition.rows, partition.shards)
    }
}

// A received value may be invalid, so `new` ensures that there is at least one shard.
impl From<(PartitionStrategy, usize, usize)> for RowPartition {
    fn from((strategy, rows, shards): (PartitionStrategy, usize, usize)) -> Self {
        Self::new(strategy, rows, shards)
    }
}

/// The location of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowLocation {
    /// The index of the shard.
    pub shard: usize,
    /// The index of the row on the shard.
    pub row: usize,
}

impl RowPartition {
    /// Creates a partition of `rows` rows over `shards` shards. The number of shards is reduced to the number of rows
    /// if it is greater, and is at least 1.
    pub fn new(strategy: PartitionStrategy, rows: usize, shards: usize) -> Self {
        Self { strategy, rows, shards: shards.min(rows).max(1) }
    }

    /// Creates a partition of `rows` rows into contiguous ranges.
    pub fn div(rows: usize, shards: usize) -> Self {
        Self::new(PartitionStrategy::Div, rows, shards)
    }

    /// Returns the strategy.
    pub fn strategy(&self) -> PartitionStrategy {
        self.strategy
    }

    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// Returns the number of rows of a shard; 0 if there is no such shard. If the rows cannot be divided evenly, the
    /// first shards have one row more.
    pub fn len(&self, shard: usize) -> usize {
        if shard < self.shards { self.base() + usize::from(shard < self.extra()) } else { 0 }
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns, for each shard, the range from its first row to its last. With [`PartitionStrategy::Mod`], the ranges
    /// also include rows of other shards.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let partition = *self;
        (0..partition.shards).map(move |shard| match (partition.strategy, partition.len(shard)) {
            (PartitionStrategy::Div, len) => {
                let start = partition.row(RowLocation { shard, row: 0 });
                start..start + len
            }
            (PartitionStrategy::Mod, 0) => shard..shard,
            (PartitionStrategy::Mod, len) => shard..partition.row(RowLocation { shard, row: len - 1 }) + 1,
        })
    }

    /// Returns the location of a row. The result is invalid if the table has no such row.
    pub fn location(&self, row: usize) -> RowLocation {
        let (base, extra) = (self.base(), self.extra());
        match self.strategy {
            PartitionStrategy::Mod => RowLocation { shard: row % self.shards, row: row / self.shards },
            // The first `extra` shards have one row more.
            PartitionStrategy::Div if row < extra * (base + 1) => {
                RowLocation { shard: row / (base + 1), row: row % (base + 1) }
            }
            PartitionStrategy::Div => {
                let row = row - extra * (base + 1);
                RowLocation { shard: extra + row / base.max(1), row: row % base.max(1) }
            }
        }
    }

    /// Returns the index in the table of the row at a location.
    pub fn row(&self, location: RowLocation) -> usize {
        match self.strategy {
            PartitionStrategy::Mod => location.row * self.shards + location.shard,
            PartitionStrategy::Div => {
                location.shard * self.base() + location.shard.min(self.extra()) + location.row
            }
        }
    }

    /// Returns the indices on a shard of the table's rows in the range `rows`.
    pub fn rows_on(&self, shard: usize, rows: Range<usize>) -> Range<usize> {
        let before = |row: usize| match self.strategy {
            PartitionStrategy::Mod => row.saturating_sub(shard).div_ceil(self.shards),
            PartitionStrategy::Div => row.saturating_sub(self.row(RowLocation { shard, row: 0 })),
        };
        let end = before(rows.end).min(self.len(shard));
        before(rows.start).min(end)..end
    }

    /// Groups ids by shard. Within each shard, the ids keep their order in `ids`. `operation` is the name of the
    /// operation in errors.
    ///
    /// # Errors
    /// - [`Error::Id`]: an id is not the index of a row of the table.
    pub fn split(&self, operation: &'static str, ids: &[i64]) -> Result<Split<usize>> {
        let mut places = Vec::with_capacity(ids.len());
        for (position, id) in ids.iter().enumerate() {
            let row = usize::try_from(*id).ok().filter(|row| *row < self.rows);
            let outside = || Error::Id { operation, id: *id, position, rows: self.rows };
            let RowLocation { shard, row } = self.location(row.ok_or_else(outside)?);
            places.push((shard, row));
        }
        Ok(Split::new(self.shards, &places))
    }

    /// Returns the number of rows from `row` on that are consecutive both in the table and on one shard.
    pub(crate) fn run(&self, row: usize) -> usize {
        match self.strategy {
            PartitionStrategy::Mod if self.shards > 1 => 1,
            _ => {
                let location = self.location(row);
                self.len(location.shard) - location.row
            }
        }
    }

    /// Returns the moves of rows that convert this partition into `to`.
    ///
    /// The moves cover every row once, in runs of maximum length, and are computed lazily. If both partitions are
    /// [`Div`](PartitionStrategy::Div), there are fewer moves than shards of both partitions together.
    ///
    /// # Errors
    /// - [`Error::Rows`]: the other partition has a different number of rows.
    pub fn moves(&self, to: RowPartition) -> Result<Moves> {
        if to.rows == self.rows {
            Ok(Moves::new(*self, to))
        } else {
            Err(Error::Rows { operation: "repartition", expected: self.rows, found: to.rows })
        }
    }

    /// Checks that this is the partition of a variable of shape `shape`, and that it has a shard `shard`. A scalar
    /// counts as one row.
    pub(crate) fn require_shard(&self, shape: &[usize], shard: usize) -> Result<()> {
        let rows = shape.first().copied().unwrap_or(1);
        if self.rows != rows {
            return Err(Error::PartitionRows { shape: shape.to_vec(), expected: rows, found: self.rows });
        }
        if shard >= self.shards {
            return Err(Error::NoShard { shard, shape: shape.to_vec(), shards: self.shards });
        }
        Ok(())
    }

    fn base(&self) -> usize {
        self.rows / self.shards
    }

    fn extra(&self) -> usize {
        self.rows % self.shards
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PartitionStrategy::{Div, Mod};
    use proptest::prelude::*;

    #[test]
    fn shard_3_the_first_shards_have_one_row_more() {
        let lens = |rows, shards| {
            let partition = RowPartition::div(rows, shards);
            (0..partition.shards()).map(|shard| partition.len(shard)).collect::<Vec<_>>()
        };
        assert_eq!(lens(13, 5), [3, 3, 3, 2, 2]);
        assert_eq!(lens(2, 3), [1, 1]);
        assert_eq!(lens(0, 3), [0]);
        assert_eq!(lens(4, 0), [4]);
        assert_eq!(RowPartition::div(4, 2).len(2), 0);
    }

    #[test]
    fn mod_deals_in_turn() {
        let partition = RowPartition::new(Mod, 7, 3);
        assert_eq!(partition.location(5), RowLocation { shard: 2, row: 1 });
        assert_eq!(partition.ranges().collect::<Vec<_>>(), [0..7, 1..5, 2..6]);
    }

    // SV-8
    #[test]
    fn ids_outside_of_the_table_are_refused_with_their_position() {
        let partition = RowPartition::div(5, 2);
        for id in [5, -1, i64::MIN, i64::MAX] {
            let error = partition.split("gather", &[4, id]).unwrap_err();
            assert!(
                matches!(error, Error::Id { id: found, position: 1, rows: 5, .. } if found == id),
                "{error}"
            );
        }
        assert!(RowPartition::div(0, 2).split("gather", &[0]).is_err());
    }

    fn strategies() -> impl Strategy<Value = PartitionStrategy> {
        prop_oneof![Just(Div), Just(Mod)]
    }

    proptest! {
        #[test]
        fn a_range_of_rows_is_a_range_on_each_shard(
            strategy in strategies(), rows in 0usize..40, shards in 1usize..9, a in 0usize..40, b in 0usize..40,
        ) {
            let partition = RowPartition::new(strategy, rows, shards);
            let range = a.min(rows)..b.clamp(a.min(rows), rows.max(a.min(rows)));
            for shard in 0..partition.shards() {
                let found: Vec<_> =
                    partition.rows_on(shard, range.clone()).map(|row| partition.row(RowLocation { shard, row })).collect();
                let expected: Vec<_> = range.clone().filter(|row| partition.location(*row).shard == shard).collect();
                prop_assert_eq!(found, expected);
            }
        }

        // SHARD-3 and SV-5
        #[test]
        fn every_row_has_one_place(strategy in strategies(), rows in 0usize..200, shards in 0usize..20) {
            let partition = RowPartition::new(strategy, rows, shards);
            let mut model: Vec<Vec<usize>> = vec![Vec::new(); partition.shards()];
            for row in 0..rows {
                let location = partition.location(row);
                prop_assert_eq!(partition.row(location), row);
                prop_assert_eq!(location.row, model[location.shard].len());
                model[location.shard].push(row);
            }
            for (shard, (rows, range)) in model.iter().zip(partition.ranges()).enumerate() {
                prop_assert_eq!(partition.len(shard), rows.len());
                prop_assert!(rows.iter().all(|row| range.contains(row)));
                match strategy {
                    Div => prop_assert_eq!(range.collect::<Vec<_>>(), rows.clone()),
                    Mod => prop_assert!(rows.iter().all(|row| row % partition.shards() == shard)),
                }
            }
            if strategy == Div && rows > 0 {
                let (base, extra) = (rows / partition.shards(), rows % partition.shards());
                for row in 0..rows {
                    // The formula of the specification.
                    let assignment = (row / (base + 1)).max(row.saturating_sub(extra) / base);
                    prop_assert_eq!(partition.location(row).shard, assignment);
                }
            }
        }

        #[test]
        fn ids_that_were_split_come_back_in_their_order(
            strategy in strategies(),
            (rows, ids) in (1usize..60).prop_flat_map(|rows| {
                (Just(rows), prop::collection::vec(0..rows as i64, 0..50))
            }),
            shards in 1usize..9,
        ) {
            let partition = RowPartition::new(strategy, rows, shards);
            let split = partition.split("gather", &ids).unwrap();
            let mut found = vec![-1; ids.len()];
            for shard in 0..split.shards() {
                let answer: Vec<i64> =
                    split.of(shard).iter().map(|row| partition.row(RowLocation { shard, row: *row }) as i64).collect();
                prop_assert!(split.positions(shard).is_sorted());
                prop_assert_eq!(split.take(shard, &ids, 1), answer.clone());
                split.put(shard, &answer, 1, &mut found);
            }
            prop_assert_eq!(found, ids);
        }
    }
}
