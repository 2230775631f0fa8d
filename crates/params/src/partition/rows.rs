//! Tables of a fixed number of rows.

use super::{Moves, Split};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How rows are dealt out to shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PartitionStrategy {
    /// Contiguous ranges: of 13 rows, 5 shards have 3, 3, 3, 2 and 2.
    #[doc(alias = "div")]
    #[default]
    Div,
    /// In turn: row `r` of `n` shards is with shard `r mod n`.
    #[doc(alias = "mod")]
    Mod,
}

/// The rows of a table, partitioned over shards.
///
/// ```
/// use distribute_params::{Place, RowPartition};
///
/// let table = RowPartition::div(13, 5);
/// assert_eq!(table.ranges().collect::<Vec<_>>(), [0..3, 3..6, 6..9, 9..11, 11..13]);
/// assert_eq!(table.place(10), Place { shard: 3, row: 1 });
///
/// let ids = table.split("embedding_lookup", &[12, 0, 10, 0])?;
/// assert_eq!((ids.of(0), ids.of(3), ids.of(4)), (&[0, 0][..], &[1][..], &[1][..]));
/// # Ok::<(), distribute_params::Error>(())
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

// What was sent may be anything: there is at least one shard again.
impl From<(PartitionStrategy, usize, usize)> for RowPartition {
    fn from((strategy, rows, shards): (PartitionStrategy, usize, usize)) -> Self {
        Self::new(strategy, rows, shards)
    }
}

/// Where a row is: on which shard, and which of its rows it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The shard.
    pub shard: usize,
    /// The row, counted from the shard's first.
    pub row: usize,
}

impl RowPartition {
    /// Partitions `rows` over `shards`: at least one, and no more than there are rows.
    pub fn new(strategy: PartitionStrategy, rows: usize, shards: usize) -> Self {
        Self { strategy, rows, shards: shards.min(rows).max(1) }
    }

    /// In contiguous ranges.
    pub fn div(rows: usize, shards: usize) -> Self {
        Self::new(PartitionStrategy::Div, rows, shards)
    }

    /// The strategy.
    pub fn strategy(&self) -> PartitionStrategy {
        self.strategy
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of shards.
    pub fn shards(&self) -> usize {
        self.shards
    }

    /// How many rows a shard has. The first ones have one more where there is a remainder.
    pub fn len(&self, shard: usize) -> usize {
        if shard < self.shards { self.base() + usize::from(shard < self.extra()) } else { 0 }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// For each shard the first of its rows and the one after its last. Of [`PartitionStrategy::Mod`] these are ends: what is
    /// between belongs to other shards too.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let partition = *self;
        (0..partition.shards).map(move |shard| match (partition.strategy, partition.len(shard)) {
            (PartitionStrategy::Div, len) => {
                let start = partition.row(Place { shard, row: 0 });
                start..start + len
            }
            (PartitionStrategy::Mod, 0) => shard..shard,
            (PartitionStrategy::Mod, len) => shard..partition.row(Place { shard, row: len - 1 }) + 1,
        })
    }

    /// Where a row is. It has to be one of the table's; else the place is no row of the shard.
    pub fn place(&self, row: usize) -> Place {
        let (base, extra) = (self.base(), self.extra());
        match self.strategy {
            PartitionStrategy::Mod => Place { shard: row % self.shards, row: row / self.shards },
            // The first `extra` shards have one row more.
            PartitionStrategy::Div if row < extra * (base + 1) => {
                Place { shard: row / (base + 1), row: row % (base + 1) }
            }
            PartitionStrategy::Div => {
                let row = row - extra * (base + 1);
                Place { shard: extra + row / base.max(1), row: row % base.max(1) }
            }
        }
    }

    /// The row that is at a place.
    pub fn row(&self, place: Place) -> usize {
        match self.strategy {
            PartitionStrategy::Mod => place.row * self.shards + place.shard,
            PartitionStrategy::Div => place.shard * self.base() + place.shard.min(self.extra()) + place.row,
        }
    }

    /// Sorts ids by shard: which of its rows each is asked for, in the order of the ids.
    ///
    /// # Errors
    /// [`Error::Id`] for one that is no row of the table.
    pub fn split(&self, operation: &'static str, ids: &[i64]) -> Result<Split<usize>> {
        let mut places = Vec::with_capacity(ids.len());
        for (position, id) in ids.iter().enumerate() {
            let row = usize::try_from(*id).ok().filter(|row| *row < self.rows);
            let outside = || Error::Id { operation, id: *id, position, rows: self.rows };
            let Place { shard, row } = self.place(row.ok_or_else(outside)?);
            places.push((shard, row));
        }
        Ok(Split::new(self.shards, &places))
    }

    /// How many rows from this one on lie one after another on its shard.
    pub(crate) fn run(&self, row: usize) -> usize {
        match self.strategy {
            PartitionStrategy::Mod if self.shards > 1 => 1,
            _ => {
                let place = self.place(row);
                self.len(place.shard) - place.row
            }
        }
    }

    /// What has to be moved where, so that the rows that are partitioned in this way are in another.
    ///
    /// Covers every row once. Stretches are as long as they can be; they are made one by one, and where both are
    /// [`Div`](PartitionStrategy::Div), there are fewer than shards of both together.
    ///
    /// # Errors
    /// [`Error::Rows`] if the other has another number of rows.
    pub fn moves(&self, to: RowPartition) -> Result<Moves> {
        if to.rows == self.rows {
            Ok(Moves::new(*self, to))
        } else {
            Err(Error::Rows { operation: "repartition", expected: self.rows, found: to.rows })
        }
    }

    /// Refuses a shard that a variable of this shape doesn't have, cut in this way. A scalar is one row.
    pub(crate) fn require_shard(&self, shape: &[usize], shard: usize) -> Result<()> {
        let rows = shape.first().copied().unwrap_or(1);
        if self.rows != rows {
            return Err(Error::Rows { operation: "initialize", expected: rows, found: self.rows });
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
        assert_eq!(partition.place(5), Place { shard: 2, row: 1 });
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
        // SHARD-3 and SV-5
        #[test]
        fn every_row_has_one_place(strategy in strategies(), rows in 0usize..200, shards in 0usize..20) {
            let partition = RowPartition::new(strategy, rows, shards);
            let mut model: Vec<Vec<usize>> = vec![Vec::new(); partition.shards()];
            for row in 0..rows {
                let place = partition.place(row);
                prop_assert_eq!(partition.row(place), row);
                prop_assert_eq!(place.row, model[place.shard].len());
                model[place.shard].push(row);
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
                    // As the rule has it.
                    let assignment = (row / (base + 1)).max(row.saturating_sub(extra) / base);
                    prop_assert_eq!(partition.place(row).shard, assignment);
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
                    split.of(shard).iter().map(|row| partition.row(Place { shard, row: *row }) as i64).collect();
                prop_assert!(split.positions(shard).is_sorted());
                prop_assert_eq!(split.take(shard, &ids, 1), answer.clone());
                split.put(shard, &answer, 1, &mut found);
            }
            prop_assert_eq!(found, ids);
        }
    }
}
