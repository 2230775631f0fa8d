//! A server as the one that follows it takes and gives it: all at once.

use super::{Core, lock};
use crate::OpenError;
use crate::log::Record;
use crate::replica::{Follower, Known, read_life, write_life};
use distribute_params::{Request, Result, TableImage};
use std::sync::{Arc, MutexGuard};

impl Core {
    /// From now on changes are made for a follower, too.
    pub(crate) fn follow(&self, follower: Arc<Follower>) {
        // One is enough; the first stays.
        let _ = self.follower.set(follower);
    }

    /// Nothing is changed until these are dropped.
    pub(crate) fn orders(&self) -> Vec<MutexGuard<'_, ()>> {
        self.orders.iter().map(lock).collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.tables.names()
    }

    pub(crate) fn image(&self, name: &str) -> Result<Option<TableImage>> {
        self.tables.image(name)
    }

    /// All of its state but the tables.
    pub(crate) fn known(&self) -> Known {
        let (clients, job) = (self.ledger.clients(), self.tables.job());
        Known { clients, job, tables: self.tables.names(), lost: self.lost.names() }
    }

    /// The number of the next record of the log; 0 without one.
    pub(crate) fn next_record(&self) -> u64 {
        self.log.as_ref().map_or(0, |log| log.journal.next())
    }

    /// The life of which its folder is; 0 of one that is new, and without a folder.
    pub(crate) fn life(&self) -> Result<u64, OpenError> {
        self.log.as_ref().map_or(Ok(0), |log| read_life(log.journal.folder()))
    }

    pub(crate) fn set_life(&self, life: u64) -> Result<(), OpenError> {
        self.log.as_ref().map_or(Ok(()), |log| write_life(log.journal.folder(), life))
    }

    /// Puts other tables, and what else is known with them, in place of all that there is, also in the folder.
    pub(crate) fn replace(&self, images: Vec<TableImage>, known: Known) -> std::result::Result<(), String> {
        let Known { clients, job, lost, .. } = known;
        {
            let _all = self.orders();
            self.tables.clear();
            self.tables.handle(&Request::BeginJob { job }).map_err(|error| error.to_string())?;
            for image in images {
                self.tables.restore_image(image).map_err(|error| error.to_string())?;
            }
            self.ledger.replace(&clients).map_err(|error| error.to_string())?;
            self.lost.set(lost);
        }
        let Some(log) = &self.log else { return Ok(()) };
        // A record of nothing: the log that there is belongs to what there was, and another begins behind the snapshot.
        let nothing = Record { client: 0, sequence: 0, head: Default::default(), body: Default::default() };
        log.journal.append(&nothing).map_err(|error| error.to_string())?;
        self.snapshot().map_err(|error| error.to_string())
    }
}
