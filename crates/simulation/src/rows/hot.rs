//! The copies that a worker has of hot rows, and the reports in which workers send them to each other.

use super::plan::{Plan, ROW, TABLE};
use super::worker::to_bytes;
use super::world::{Purpose, World};
use crate::planted::Planted;
use distribute_ps_tables::{HotCopies, HotLookup, HotReport, RowLayout};
use std::collections::BTreeMap;

const LAYOUT: RowLayout = RowLayout { bytes: ROW, is_f32: false };

/// The hot rows of a worker.
#[derive(Debug)]
pub struct Hot {
    copies: HotCopies,
    /// The hot rows whose changes this worker sends.
    own: Vec<i64>,
    /// The rows of `own` that this worker reads for all.
    read: Vec<i64>,
    /// The numbers of changes of the rows that have arrived.
    rows: BTreeMap<i64, u64>,
    has_failed: bool,
    /// Whether the copies do not get the changes of this update, as a planted bug.
    is_unpatched: bool,
    /// Whether no row is read after this update, as a planted bug.
    is_unread: bool,
    /// The reports of workers, by round and worker.
    reports: BTreeMap<(u64, usize), Vec<u8>>,
}

impl Hot {
    /// Creates the copies of a process; `None` if the plan has no hot rows.
    pub fn new(plan: &Plan) -> Option<Self> {
        let copies = plan.hot.as_ref()?.copies(TABLE, LAYOUT)?.with_window(plan.window);
        let (own, read, rows, has_failed, is_unpatched, is_unread, reports) = Default::default();
        Some(Self { copies, own, read, rows, has_failed, is_unpatched, is_unread, reports })
    }

    pub fn hear(&mut self, round: u64, from: usize, report: &[u8]) {
        self.reports.insert((round, from), report.to_vec());
    }

    pub fn has(&self, id: i64) -> bool {
        self.copies.has(id)
    }

    pub fn look_up(&self, ids: &[i64]) -> HotLookup {
        self.copies.look_up(ids)
    }

    pub fn invalidate(&mut self) {
        self.copies.invalidate();
    }

    /// Records rows that were read for all workers.
    pub fn arrive(&mut self, rows: &[(i64, u64)]) {
        self.rows.extend(rows.iter().copied());
    }

    /// Returns the encoded report about the rows that this worker has read.
    pub fn report(&mut self) -> Vec<u8> {
        let rows: Option<Vec<_>> =
            self.read.iter().map(|id| Some(to_bytes(*id, *self.rows.get(id)?))).collect();
        let rows = rows.filter(|_| !self.has_failed).map(|rows| rows.concat());
        let mut encoded = Vec::new();
        self.copies.report(&self.own, &self.read, rows.as_deref()).encode(LAYOUT, &mut encoded);
        encoded
    }
}

impl World {
    /// Begins an update of the rows `changed`, which are counted.
    pub fn begin_hot(&mut self, number: usize, changed: &[i64]) {
        let own: Vec<i64> = changed.iter().copied().filter(|id| self.plan.sender(*id) == number).collect();
        let planted = self.planted;
        let Some(hot) = &mut self.workers[number].hot else { return };
        hot.copies.count([own]);
        hot.is_unpatched = planted == Some(Planted::HotUnpatched) && hot.copies.has_any();
        hot.is_unread = planted == Some(Planted::HotUnread) && hot.copies.has_any();
        if !hot.is_unpatched {
            hot.copies.begin_change();
        }
        (hot.has_failed, hot.own, hot.read) = (false, Vec::new(), Vec::new());
        hot.rows.clear();
    }

    /// Requests the hot rows whose changes this worker sends, except those on servers without a row of `changed`.
    pub fn request_hot(&mut self, number: usize, changed: &[i64]) {
        let Some(hot) = &self.workers[number].hot else { return };
        let own = hot.copies.ids().iter().copied().filter(|id| self.plan.sender(*id) == number);
        let own: Vec<i64> = own.collect();
        let is_unread = hot.is_unread;
        let is_changed = |id: &i64| {
            !is_unread && changed.iter().any(|other| self.plan.server_of(*other) == self.plan.server_of(*id))
        };
        let read: Vec<i64> = own.iter().copied().filter(is_changed).collect();
        if let Some(hot) = &mut self.workers[number].hot {
            (hot.own, hot.read) = (own, read.clone());
        }
        self.request_each(number, &read, Purpose::Hot);
    }

    /// Ends an update, which all workers have made.
    pub fn end_hot(&mut self, number: usize) {
        let plan = &self.plan;
        let round = self.workers[number].round();
        let Some(hot) = &mut self.workers[number].hot else { return };
        let of = |worker| hot.reports.get(&(round, worker)).map(Vec::as_slice).unwrap_or_default();
        let decode = |worker| HotReport::decode(LAYOUT, &mut of(worker)).unwrap_or_default();
        let reports: Vec<_> = (0..plan.workers).map(decode).collect();
        if !hot.is_unpatched {
            hot.copies.end_change(|id| plan.sender(id), &reports);
        }
        hot.reports.retain(|(of_round, _), _| *of_round > round);
    }

    /// Records that the hot rows that a worker has requested will not arrive.
    pub fn hot_rows_fail(&mut self, number: usize) {
        self.workers[number].hot.iter_mut().for_each(|hot| hot.has_failed = true);
        self.checks.disturbed += 1;
        self.go(number);
    }
}
