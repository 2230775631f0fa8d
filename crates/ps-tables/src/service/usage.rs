//! The usage of a server: its tables, and the number of rows read and pushed.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// The tables of a parameter server, and the numbers of rows that were read and pushed since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The number of tables, without the one that stores the layout.
    pub tables: u64,
    /// The number of rows of all tables.
    pub rows: u64,
    /// The size of the tables in bytes: see [`TableInfo::bytes`](crate::TableInfo::bytes).
    pub bytes: u64,
    /// The number of rows that were read individually; a row that is read twice counts twice.
    pub rows_read: u64,
    /// The number of rows in pushed gradients of rows; gradients of complete tables do not count.
    pub rows_pushed: u64,
    /// Whether the server keeps its tables in a folder.
    pub has_folder: bool,
    /// The number of copies of the server's tables.
    pub copies: Copies,
    /// The number of other servers of which this server has a complete copy.
    pub follows: u64,
}

/// The number of copies of a server's tables. There are two if another server replicates this one and its replica is
/// complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Copies {
    /// One copy, because no server replicates this one.
    #[default]
    One,
    /// The server has started, and has not yet reached its replica, which may have a copy of the tables.
    Starting,
    /// One copy, because the replica is unavailable or still being transferred. Changes wait until it is complete.
    Alone,
    /// Two copies: the replica is complete.
    Two,
}

/// The rows of a table that were read individually, by their indices or ids, since the server started. Reads of
/// complete tables do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowReads {
    /// The number of rows; a row that is read twice counts twice.
    pub rows: u64,
    /// The size of these rows in bytes, in the dtype in which the table stores them.
    pub bytes: u64,
}

/// Counters of the rows that were read from a table, and of their bytes.
#[derive(Debug, Default)]
pub(super) struct ReadCounters {
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl ReadCounters {
    /// Counts rows of `row_bytes` bytes each.
    pub fn add(&self, rows: usize, row_bytes: usize) {
        Counters::add(&self.rows, rows);
        Counters::add(&self.bytes, rows.saturating_mul(row_bytes));
    }

    pub fn get(&self) -> RowReads {
        RowReads { rows: Counters::of(&self.rows), bytes: Counters::of(&self.bytes) }
    }
}

/// Counters of the rows that were read, and of the rows in pushed gradients.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub read: AtomicU64,
    pub pushed: AtomicU64,
}

impl Counters {
    pub fn add(counter: &AtomicU64, rows: usize) {
        counter.fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub fn of(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Origin, Push, Request, Response, TableSpec, Tables};
    use distribute_optim::{RuleSpec, Sgd, Step};
    use distribute_tensor::HostTensor;

    #[test]
    fn rows_are_counted_once_they_are_read_or_pushed() {
        let tables = Tables::new();
        let values = HostTensor::zeros(distribute_tensor::DType::F32, [4, 2]).unwrap();
        let table = || "w".to_string();
        tables.handle(&Request::Create(TableSpec::values("w", values))).unwrap();
        tables.handle(&Request::SetRule { table: table(), rule: RuleSpec::Sgd(Sgd) }).unwrap();
        tables.handle(&Request::ReadRows { table: table(), rows: vec![3, 0, 3] }).unwrap();
        assert!(tables.handle(&Request::ReadRows { table: table(), rows: vec![4] }).is_err(), "no such row");
        let push = || Request::PushRows {
            table: table(),
            push: Push::at(Step::after(0, 1.)),
            rows: vec![1, 2],
            gradient: HostTensor::new(vec![1f32; 4], [2, 2]).unwrap(),
        };
        tables.handle(&push()).unwrap();
        // A repeated change of a closure is not counted.
        let origin = Origin { job: 0, closure: 1, floor: 0 };
        for _ in 0..2 {
            tables.handle(&Request::Once { origin, number: 0, change: Box::new(push()) }).unwrap();
        }
        let Response::Tables(infos) = tables.handle(&Request::List).unwrap() else { panic!("no tables") };
        assert_eq!(infos[0].reads, RowReads { rows: 3, bytes: 3 * 2 * 4 });
        let usage = Usage { tables: 1, rows: 4, bytes: 32, rows_read: 3, rows_pushed: 4, ..Usage::default() };
        // The table of the layout is not counted.
        let layout = crate::Layout { training: 1, servers: 1, server: 0 };
        tables.handle(&Request::Create(layout.table())).unwrap();
        assert_eq!(tables.handle(&Request::Usage).unwrap(), Response::Usage(usage));
    }
}
