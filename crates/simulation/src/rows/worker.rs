//! A worker: its cache, its prefetched rows, and the rows for which it waits.

use super::hot::Hot;
use super::oracle::{Oracle, version};
use super::plan::{Act, Plan, ROW};
use super::world::{Purpose, Request, World};
use crate::planted::Planted;
use distribute_ps_tables::{CacheLookup, CachedRows, HotLookup, Prefetch, PrefetchLookup, StepClock};
use std::collections::BTreeMap;

/// The state of a worker's process.
#[derive(Debug)]
pub struct Worker {
    /// The index of the next act.
    pub at: usize,
    pub stage: Stage,
    clock: StepClock,
    cache: Option<CachedRows>,
    prefetch: Prefetch,
    pub hot: Option<Hot>,
    /// The rows that were prefetched last.
    arriving: Option<Arriving>,
    reads: Vec<Read>,
    /// The requests without a response, by server and number.
    pub unanswered: BTreeMap<(usize, u64), Request>,
    requests: u64,
    /// The number of rounds in which this worker has waited for the others.
    round: u64,
    /// The last round of each worker.
    pub heard: Vec<u64>,
    oracle: Oracle,
}

/// The progress of an act in which the workers wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Ready,
    /// The worker waits for the gradients of the others.
    Gather,
    /// The worker waits for the responses to its changes.
    Change,
    /// The worker waits for the results of the others.
    Agree,
}

/// Rows that were requested before the run that looks them up.
#[derive(Debug)]
struct Arriving {
    change: u64,
    ids: Vec<i64>,
    rows: BTreeMap<i64, u64>,
    /// Whether a response was lost and will not be requested again.
    has_failed: bool,
}

/// A lookup some of whose rows have not arrived.
#[derive(Debug)]
struct Read {
    ids: Vec<i64>,
    /// The lookup in the cache, if there is one.
    cached: Option<CacheLookup>,
    /// The lookup of the ids that are not in the cache among the copies of hot rows, if there are any.
    hot: Option<HotLookup>,
    /// The ids that are neither in the cache nor hot.
    missing: Vec<i64>,
    found: PrefetchLookup,
    /// The rows that were requested only by the lookup, with the numbers of their changes.
    rows: BTreeMap<i64, u64>,
    /// The minimum and maximum number of changes that each row may contain.
    bounds: Vec<(u64, u64)>,
}

impl Worker {
    /// Creates a process that begins with the act `at`.
    pub fn new(plan: &Plan, at: usize) -> Self {
        let changes = plan.acts[..at].iter().filter(|act| act.changes().is_some()).count();
        Self {
            at,
            stage: Stage::Ready,
            clock: StepClock::default(),
            cache: plan.cache.and_then(|options| CachedRows::new(options, ROW)),
            prefetch: Prefetch::default(),
            hot: Hot::new(plan),
            arriving: None,
            reads: Vec::new(),
            unanswered: BTreeMap::new(),
            requests: 0,
            round: 0,
            heard: vec![0; plan.workers],
            oracle: Oracle::new(changes),
        }
    }

    /// Records a request without a response. Returns the number of the request.
    pub fn add_request(&mut self, server: usize, request: Request) -> u64 {
        self.requests += 1;
        self.unanswered.insert((server, self.requests), request);
        self.requests
    }

    /// Returns the number of rounds in which this worker has waited for the others.
    pub fn round(&self) -> u64 {
        self.round
    }

    fn all_heard(&self) -> bool {
        self.heard.iter().all(|round| *round >= self.round)
    }

    /// Records that another worker has reached a round, with its report about hot rows.
    pub fn hear(&mut self, from: usize, round: u64, report: Vec<u8>) {
        self.heard[from] = round;
        self.hot.iter_mut().for_each(|hot| hot.hear(round, from, &report));
    }

    fn is_changing(&self) -> bool {
        let is_part =
            |request: &Request| matches!(request, Request::Change(_) | Request::Read(Purpose::Hot, _));
        self.unanswered.values().any(is_part)
    }
}

impl World {
    /// Continues a worker until it waits for other workers, for responses or for some time.
    pub fn go(&mut self, number: usize) {
        loop {
            let Some(act) = self.plan.acts.get(self.workers[number].at).cloned() else { return };
            let worker = &mut self.workers[number];
            match (act, worker.stage) {
                (Act::Want(ids), _) => worker.prefetch.want(&ids[number]),
                (Act::Begin, Stage::Ready) => {
                    self.enter_round(number, Stage::Agree);
                    continue;
                }
                (Act::Begin, _) => {
                    if !worker.all_heard() {
                        return;
                    }
                    if self.planted != Some(Planted::AgeForgotten) {
                        worker.clock.begin_run();
                    }
                    worker.oracle.begin_run();
                }
                (Act::LookUp(ids), _) => {
                    worker.at += 1;
                    self.look_up(number, &ids[number]);
                    return self.go_later(number);
                }
                (Act::Update(_) | Act::Write(_), Stage::Ready) => {
                    if !worker.reads.is_empty() {
                        return;
                    }
                    self.enter_round(number, Stage::Gather);
                    continue;
                }
                (act @ (Act::Update(_) | Act::Write(_)), Stage::Gather) => {
                    if !worker.all_heard() {
                        return;
                    }
                    let is_update = matches!(act, Act::Update(_));
                    let changed = act.changes().unwrap_or_default();
                    if is_update {
                        worker.prefetch.begin_change();
                        worker.arriving = None;
                        self.begin_hot(number, changed);
                    }
                    self.workers[number].stage = Stage::Change;
                    let is_early = self.planted == Some(Planted::HotEarly);
                    if is_update && is_early {
                        self.request_hot(number, changed);
                    }
                    self.send_changes(number, changed);
                    if is_update && !is_early {
                        self.request_hot(number, changed);
                    }
                    continue;
                }
                (act @ (Act::Update(_) | Act::Write(_)), Stage::Change) => {
                    if worker.is_changing() {
                        return;
                    }
                    if matches!(act, Act::Update(_)) && self.planted == Some(Planted::PrefetchEarly) {
                        self.request_rows(number);
                    }
                    self.enter_round(number, Stage::Agree);
                    continue;
                }
                (act @ (Act::Update(_) | Act::Write(_)), Stage::Agree) => {
                    if !worker.all_heard() {
                        return;
                    }
                    self.end_change(number, matches!(act, Act::Update(_)));
                }
                (Act::End, _) => {
                    if !worker.reads.is_empty() {
                        return;
                    }
                    worker.prefetch.end_run();
                }
            }
            let worker = &mut self.workers[number];
            (worker.at, worker.stage) = (worker.at + 1, Stage::Ready);
        }
    }

    /// Enters the next round: sends the other workers the message for which they wait in it. After an update it
    /// contains the report about hot rows.
    fn enter_round(&mut self, number: usize, stage: Stage) {
        let worker = &mut self.workers[number];
        let is_update = matches!(self.plan.acts.get(worker.at), Some(Act::Update(_)));
        let hot = worker.hot.as_mut().filter(|_| is_update && stage == Stage::Agree);
        let report = hot.map(Hot::report).unwrap_or_default();
        (worker.round, worker.stage) = (worker.round + 1, stage);
        let round = worker.round;
        worker.hear(number, round, report.clone());
        self.send_round(number, round, &report);
    }

    /// Sends a change to the servers that get their changes from this worker. For each server, only one worker does so.
    fn send_changes(&mut self, number: usize, ids: &[i64]) {
        for server in (number..self.plan.servers).step_by(self.plan.workers) {
            let of_server: Vec<i64> =
                ids.iter().copied().filter(|id| self.plan.server_of(*id) == server).collect();
            if !of_server.is_empty() {
                self.request(number, server, Request::Change(of_server));
            }
        }
    }

    fn end_change(&mut self, number: usize, is_update: bool) {
        let worker = &mut self.workers[number];
        if is_update {
            if self.planted != Some(Planted::AgeForgotten) {
                worker.clock.advance();
            }
            worker.oracle.update();
            self.end_hot(number);
            if self.planted != Some(Planted::PrefetchEarly) {
                self.request_rows(number);
            }
            return;
        }
        worker.oracle.write();
        if self.planted != Some(Planted::HotKept) {
            worker.hot.iter_mut().for_each(Hot::invalidate);
        }
        if self.planted != Some(Planted::WriteUnseen) {
            worker.cache.iter_mut().for_each(CachedRows::invalidate);
        }
        if self.planted != Some(Planted::PrefetchKept) {
            worker.prefetch.begin_change();
            worker.arriving = None;
        }
    }

    /// Requests the rows of the next run from the servers.
    fn request_rows(&mut self, number: usize) {
        let worker = &mut self.workers[number];
        let (cache, now) = (worker.cache.as_ref(), worker.clock.now());
        let hot = worker.hot.as_ref();
        let is_here =
            |id| cache.is_some_and(|cache| cache.has(id, now)) || hot.is_some_and(|hot| hot.has(id));
        let request = worker.prefetch.end_change(is_here);
        let (change, ids) = (request.change, request.ids);
        worker.arriving =
            Some(Arriving { change, ids: ids.clone(), rows: BTreeMap::new(), has_failed: false });
        self.request_each(number, &ids, Purpose::Prefetch(change));
    }

    fn look_up(&mut self, number: usize, ids: &[i64]) {
        let (acts, staleness) = (&self.plan.acts, self.plan.staleness);
        let worker = &mut self.workers[number];
        let cached = worker.cache.as_mut().map(|cache| cache.look_up(ids, worker.clock.now()));
        let missing = cached.as_ref().map_or_else(|| ids.to_vec(), |cached| cached.missing.clone());
        let hot = worker.hot.as_ref().map(|hot| hot.look_up(&missing));
        let missing = hot.as_ref().map_or(missing, |hot| hot.missing.clone());
        let found = worker.prefetch.look_up(&missing, worker.arriving.as_ref().map(|rows| rows.change));
        let (least, most) = (worker.oracle.least(staleness), worker.oracle.changes);
        let bounds = |id: &i64| (version(acts, *id, least), version(acts, *id, most));
        let bounds = ids.iter().map(bounds).collect();
        self.checks.early += ids.len() - found.late.len();
        if let Some(hot) = &hot {
            let now = worker.oracle.changes;
            let rows = hot.found.chunks(ROW).map(of_bytes);
            let stale = rows.filter(|(id, changes)| *changes != version(acts, *id, now));
            let stale =
                stale.map(|row| format!("worker {number} has a copy of hot row {row:?} after {now} changes"));
            self.checks.broken.extend(stale);
        }
        let late = found.late.clone();
        let (ids, rows) = (ids.to_vec(), BTreeMap::new());
        worker.reads.push(Read { ids, cached, hot, missing, found, rows, bounds });
        self.request_each(number, &late, Purpose::LookUp);
        self.finish_reads(number);
    }

    /// Handles rows that a worker has requested.
    pub fn rows_arrive(&mut self, number: usize, purpose: Purpose, rows: &[(i64, u64)]) {
        let worker = &mut self.workers[number];
        match purpose {
            Purpose::LookUp => worker.reads.iter_mut().for_each(|read| {
                // Another lookup of the same rows has its own request, which is as late or later.
                rows.iter().filter(|(id, _)| read.found.late.contains(id)).for_each(|(id, changes)| {
                    read.rows.entry(*id).or_insert(*changes);
                });
            }),
            Purpose::Prefetch(change) => {
                let all = worker.arriving.as_mut().filter(|arriving| arriving.change == change);
                all.into_iter().for_each(|arriving| arriving.rows.extend(rows.iter().copied()));
            }
            Purpose::Hot => {
                worker.hot.iter_mut().for_each(|hot| hot.arrive(rows));
                return self.go(number);
            }
        }
        self.finish_reads(number);
    }

    /// Records that the rows that were prefetched after a change will not arrive.
    pub fn prefetch_fails(&mut self, number: usize, change: u64) {
        let arriving = self.workers[number].arriving.as_mut();
        arriving.into_iter().filter(|rows| rows.change == change).for_each(|rows| rows.has_failed = true);
        self.finish_reads(number);
    }

    /// Finishes the lookups whose rows have arrived.
    fn finish_reads(&mut self, number: usize) {
        let mut again = Vec::new();
        let worker = &mut self.workers[number];
        for read in &mut worker.reads {
            let is_waiting = read.found.places.iter().any(Option::is_some);
            if is_waiting && worker.arriving.as_ref().is_none_or(|rows| rows.has_failed) {
                // All of these rows are requested again.
                let places = read.missing.iter().zip(&mut read.found.places);
                let lost = places.filter_map(|(id, place)| place.take().map(|_| *id));
                let lost: Vec<i64> = lost.collect();
                read.found.late.extend(&lost);
                again.extend(lost);
            }
        }
        if !again.is_empty() {
            self.checks.disturbed += 1;
            self.request_each(number, &again, Purpose::LookUp);
        }
        let worker = &mut self.workers[number];
        let (mut waiting, mut complete) = (Vec::new(), Vec::new());
        for read in std::mem::take(&mut worker.reads) {
            match read.fetched(worker.arriving.as_ref()) {
                Some(rows) => complete.push((read, rows)),
                None => waiting.push(read),
            }
        }
        worker.reads = waiting;
        let has_finished = worker.reads.is_empty() && !complete.is_empty();
        for (read, fetched) in complete {
            let all = match (&mut self.workers[number].cache, &read.cached) {
                (Some(cache), Some(lookup)) => {
                    cache.insert(lookup, &fetched);
                    let all = [&lookup.found[..], &fetched].concat();
                    lookup.places.iter().flat_map(|at| all[at * ROW..(at + 1) * ROW].to_vec()).collect()
                }
                _ => fetched,
            };
            self.verify(number, &read, &all);
        }
        if has_finished {
            self.go_later(number);
        }
    }

    /// Checks the rows of a lookup against the history.
    // INV-87, INV-102
    fn verify(&mut self, number: usize, read: &Read, rows: &[u8]) {
        for ((id, (least, most)), row) in read.ids.iter().zip(&read.bounds).zip(rows.chunks(ROW)) {
            let (found, changes) = of_bytes(row);
            if found != *id || !(*least..=*most).contains(&changes) {
                let at = self.workers[number].at;
                self.checks.broken.push(format!(
                    "worker {number} reads row {found} with {changes} changes in place of row {id} with {least} to {most}, \
                     before act {at}"
                ));
            }
        }
        let age = self.workers[number].cache.as_ref().map_or(0, |cache| cache.usage().max_age);
        if age > self.plan.staleness {
            self.checks.broken.push(format!("worker {number} counts an age of {age}"));
        }
    }
}

impl Read {
    /// Returns the rows that were not in the cache, or `None` if some have not arrived.
    fn fetched(&self, arriving: Option<&Arriving>) -> Option<Vec<u8>> {
        let row = |(id, place): (&i64, &Option<usize>)| match place {
            None => Some(to_bytes(*id, *self.rows.get(id)?)),
            Some(place) => {
                let arriving = arriving?;
                let found = arriving.ids.get(*place)?;
                Some(to_bytes(*found, *arriving.rows.get(found)?))
            }
        };
        let rows: Option<Vec<_>> = self.missing.iter().zip(&self.found.places).map(row).collect();
        let rows = rows.map(|rows| rows.concat())?;
        let Some(hot) = &self.hot else { return Some(rows) };
        let mut requested = rows.chunks(ROW);
        let row = |place: &Option<usize>| match place {
            Some(at) => hot.found.get(at * ROW..(at + 1) * ROW),
            None => requested.next(),
        };
        let all: Option<Vec<&[u8]>> = hot.places.iter().map(row).collect();
        all.map(|all| all.concat())
    }
}

pub fn to_bytes(id: i64, changes: u64) -> Vec<u8> {
    [id.to_le_bytes(), changes.to_le_bytes()].concat()
}

fn of_bytes(row: &[u8]) -> (i64, u64) {
    let number = |range: std::ops::Range<usize>| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&row[range]);
        u64::from_le_bytes(bytes)
    };
    (number(0..8).cast_signed(), number(8..16))
}
