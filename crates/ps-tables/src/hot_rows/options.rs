//! The choice of the rows that are copied, as the program sets it, and the usage of the copies.

use super::{HotCopies, RowLayout};
use std::collections::BTreeMap;

/// The rows of tables of which each worker has a copy.
///
/// ```
/// use distribute_ps_tables::HotRows;
/// let measured = HotRows::measured(1000); // of each table
/// let named = HotRows::named([("words.weight", vec![0, 1, 2])]);
/// assert_ne!(measured, named);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotRows(Choice);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Measured(usize),
    Named(BTreeMap<String, Vec<i64>>),
}

impl HotRows {
    /// Copies the rows of each table that are looked up most: at most `rows` of a table, whatever its number of shards.
    ///
    /// The workers count how often each row has a gradient. In each step, a row counts once for each replica; only once
    /// for each worker if the rows of the table are cached or prefetched, because the replicas then request a row
    /// together. Steps since the last choice count in full, those before it half, and so on. Every 16 steps, the rows
    /// with the greatest counts are chosen; among equal counts, those with smaller ids. Rows that are looked up too
    /// seldom are not copied: the count of a row of `b` bytes must be at least `b / (b + 8)` for each worker and step,
    /// because a copy then takes no more bytes than the requests and their responses. `b` is the size in the dtype of
    /// the table, also if rows are stored in bf16.
    pub fn measured(rows: usize) -> Self {
        Self(Choice::Measured(rows))
    }

    /// Copies the given rows of the tables with the given names. A name is that of a variable, such as `words.weight`;
    /// if several variables have it, each has copies of its own. Names without a table have no effect. A copy is made
    /// in the first step that changes its row, or another row of the same shard.
    pub fn named<N: Into<String>, I: IntoIterator<Item = i64>>(
        tables: impl IntoIterator<Item = (N, I)>,
    ) -> Self {
        let mut named: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (table, ids) in tables {
            named.entry(table.into()).or_default().extend(ids);
        }
        for ids in named.values_mut() {
            ids.sort_unstable();
            ids.dedup();
        }
        Self(Choice::Named(named))
    }

    /// Returns the rows of a table that the program has named, in ascending order.
    #[doc(hidden)]
    pub fn ids(&self, table: &str) -> &[i64] {
        match &self.0 {
            Choice::Measured(_) => &[],
            Choice::Named(tables) => tables.get(table).map_or(&[], Vec::as_slice),
        }
    }

    /// Creates the copies of a table, which have no values yet; `None` if no row of the table is copied.
    #[doc(hidden)]
    pub fn copies(&self, table: &str, layout: RowLayout) -> Option<HotCopies> {
        match &self.0 {
            Choice::Measured(rows) => (*rows > 0).then(|| HotCopies::measured(table, *rows, layout)),
            Choice::Named(_) => {
                let ids = self.ids(table);
                (!ids.is_empty()).then(|| HotCopies::named(table, ids, layout))
            }
        }
    }
}

/// The usage of the copies that a process has of hot rows, since they were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HotRowUsage {
    /// The number of rows that were read from a copy.
    pub hits: u64,
    /// The number of other rows that were looked up, in tables with copies of some rows.
    pub misses: u64,
    /// The number of values that this process has sent for the copies of others. A value that is sent to several
    /// workers counts for each.
    pub sent_rows: u64,
    /// The size in bytes of what this process has sent about hot rows to all others: values, counts and ids.
    pub sent_bytes: u64,
    /// The number of copies that this process has now.
    pub rows: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_without_hot_rows_have_no_copies() {
        let layout = RowLayout { bytes: 4, is_f32: true };
        let named = HotRows::named([("a", vec![3, 1, 3]), ("b", vec![]), ("a", vec![0])]);
        assert_eq!(named.copies("a", layout).unwrap().ids(), [0, 1, 3]);
        assert!(named.copies("b", layout).is_none() && named.copies("c", layout).is_none());
        assert!(HotRows::measured(0).copies("a", layout).is_none());
        assert!(HotRows::measured(1).copies("a", layout).unwrap().is_measured());
        assert_eq!(HotRows::measured(1).ids("a"), [0i64; 0]);
    }
}
