//! The transfer of a server's state to and from its follower.

use super::Core;
use super::backup::back_up;
use super::follower::Follower;
use super::life::{read_life, write_life};
use crate::OpenError;
use crate::log::{Record, path};
use distribute_log::warn_or_stderr;
use distribute_ps_tables::{ClientPushes, Result, TableImage};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The state of a server without its tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateHeader {
    /// The applied changes of each client.
    pub clients: Vec<ClientPushes>,
    /// The greatest number of a job that has begun.
    pub job: u64,
    /// The names of all tables of the state.
    pub tables: Vec<String>,
    /// The names of tables that were lost before, for errors.
    pub lost: Vec<String>,
}

impl Core {
    /// Sends all later changes to a follower, unless there already is one.
    pub(crate) fn follow(&self, follower: Arc<Follower>) {
        // Only one follower is supported; the first one stays.
        let _ = self.follower.set(follower);
    }

    /// Waits for changes in progress, and blocks new ones until the returned guards are dropped.
    pub(crate) fn orders(&self) -> Vec<MutexGuard<'_, ()>> {
        self.orders.iter().map(|order| order.lock()).collect()
    }

    /// Returns the number of servers of which this server has a complete copy, as a counter that the owner of the
    /// copies updates.
    pub(crate) fn follows(&self) -> &Arc<AtomicU64> {
        &self.follows
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.tables.names()
    }

    pub(crate) fn image(&self, name: &str) -> Result<Option<TableImage>> {
        self.tables.image(name)
    }

    /// Returns the state without the tables.
    pub(crate) fn header(&self) -> StateHeader {
        let (clients, job) = (self.ledger.clients(), self.tables.job());
        StateHeader { clients, job, tables: self.tables.names(), lost: self.lost.names() }
    }

    /// Returns the number of the next record of the log; 0 without a log.
    pub(crate) fn next_record(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.journal.next())
    }

    /// Returns the life that is stored in the folder; 0 for a new folder, or without one.
    pub(crate) fn life(&self) -> Result<u64, OpenError> {
        self.log.as_ref().map_or(Ok(0), |log| read_life(log.journal.folder()))
    }

    pub(crate) fn set_life(&self, life: u64) -> Result<(), OpenError> {
        self.log.as_ref().map_or(Ok(()), |log| write_life(log.journal.folder(), life))
    }

    /// Copies the files of the folder before another state replaces them, and logs a warning. Begins a new file of the
    /// log. Does nothing if the log is empty or does not exist.
    fn back_up(&self) -> std::result::Result<(), OpenError> {
        let Some(log) = self.log.as_ref().filter(|log| log.journal.next() > 0) else { return Ok(()) };
        let folder = log.journal.folder();
        let io = || OpenError::io("backing up the state in", folder);
        // Nothing is appended to the next file before it is copied.
        let _all = self.orders();
        let next = log.journal.rotate().map_err(io())?;
        let backup = back_up(folder, read_life(folder)?, &path(folder, next)).map_err(io())?;
        if let Some(backup) = backup {
            warn_or_stderr(|| {
                tracing::warn!(
                    "the state in this server's folder is replaced, and was backed up in {}: it is not \
                     needed if the training continues",
                    backup.display()
                );
            });
        }
        Ok(())
    }

    /// Replaces all tables and the rest of the state, in memory and in the folder. The files of the previous state are
    /// copied first.
    pub(crate) fn replace(
        &self,
        images: Vec<TableImage>,
        header: StateHeader,
    ) -> std::result::Result<(), String> {
        let StateHeader { clients, job, lost, .. } = header;
        self.back_up().map_err(|error| error.to_string())?;
        {
            let _all = self.orders();
            self.tables.clear();
            self.tables.restore_job(job);
            for image in images {
                self.tables.restore_image(image).map_err(|error| error.to_string())?;
            }
            self.ledger.replace(&clients).map_err(|error| error.to_string())?;
            self.lost.set(lost);
        }
        let Some(log) = &self.log else { return Ok(()) };
        // An empty record: the existing log belongs to the previous state, and another file begins after the
        // snapshot.
        let nothing = Record { client: 0, sequence: 0, head: Default::default(), body: Default::default() };
        log.journal.append(&nothing).map_err(|error| error.to_string())?;
        if let Some(changes) = self.changes.get() {
            changes.begin_all(log.journal.next(), &self.tables);
        }
        self.snapshot().map_err(|error| error.to_string())
    }
}
