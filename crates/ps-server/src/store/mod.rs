//! The tables of one server, and the order in which they are changed.
//!
//! | file | contents |
//! |---|---|
//! | `open` | the start of a server from its folder: the snapshot, and the changes after it |
//! | `persister` | the threads that save tables and sync the log |
//! | `follower` | changes that the follower has not received yet, and the threads that wait for them |
//! | `followed` | the transfer of the server's state to and from its follower |
//! | `backup` | copies of a state that is replaced |
//! | `changed` | the rows that have changed, by the number of the change |
//! | `life` | the number of a life in a folder |
//! | `lost` | requests about tables that were lost |
//! | `names` | lists of names for messages |

// - **INV-53** A change is in the log before it is made, and as durable as requested before it is acknowledged.
//   Changes of a table are made in the order of the log. A restarted server therefore has the same state, whenever
//   its tables were saved. Tests: `ps-server/src/store/tests/`, `ps-server/tests/it/killed.rs`.
// - INV-28: a parameter server takes at most 16,384 requests in a call, and reads no more for a call once its
//   answers have 64 MiB. It creates no table, rows or slots for which its tables have no memory left, which is
//   checked before a change is logged. Its record of changed rows has at most twice as many ids as there are rows, or
//   65,536. Tests: `ps-server/src/store/tests/fuzz.rs`, `ps-server/src/store/tests/changed.rs`,
//   `ps-server/tests/it/service.rs`.

mod backup;
pub(crate) mod changed;
mod followed;
mod follower;
mod life;
mod lost;
mod names;
mod open;
mod persister;
#[cfg(test)]
mod tests;

use crate::codec::{Call, EncodedRequest};
use crate::ledger::{Decision, Ledger};
use crate::log::{Journal, Opens, Record};
use crate::{OpenError, ServerOptions};
use changed::Changes;
use distribute_files::LockFile;
use distribute_ps_tables::{Refusal, RefusalKind, Request, Response, State, Tables, Usage};
use distribute_tensor::HostTensor;
pub(crate) use followed::StateHeader;
pub(crate) use follower::{Change, Follower};
use lost::LostTables;
pub(crate) use names::listed;
pub(crate) use open::{files, hold};
use parking_lot::{Mutex, MutexGuard};
use persister::Persister;
pub(crate) use persister::StopSignal;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The maximum total size in bytes of a call's responses, which are in memory at the same time. Once it is reached,
/// further reads of the call are rejected.
const MAX_ANSWERED: usize = 64 << 20;

/// The number of locks for the order of changes. A table uses one of them, by its name.
const ORDERS: usize = 64;

/// The tables of a server, and the threads that save them if there is a folder.
#[derive(Debug)]
pub(crate) struct Store {
    core: Arc<Core>,
    _persister: Option<Persister>,
}

/// The state of a server, which executes requests.
#[derive(Debug)]
pub(crate) struct Core {
    tables: Arc<Tables>,
    ledger: Ledger,
    /// The locks for the order of changes, each of which several tables share. A change that is logged or replicated
    /// holds the lock of its table. So the changes of a table are applied, and reach the follower, in the order of the
    /// log.
    orders: Vec<Mutex<()>>,
    log: Option<Persistence>,
    follower: OnceLock<Arc<Follower>>,
    /// The rows that have changed; empty until a client requests them.
    changes: OnceLock<Changes>,
    lost: LostTables,
    /// The number of the job that had begun when tables were found in the folder; `None` if there were no tables.
    found: Option<u64>,
    /// The number of servers of which this server has a complete copy.
    follows: Arc<AtomicU64>,
}

/// The persistence of a server.
pub(crate) struct Persistence {
    journal: Journal,
    /// A lock that is held while tables are saved.
    saving: Mutex<()>,
    options: ServerOptions,
    /// The lock that prevents other servers from using the folder.
    _lock: LockFile,
}

impl Store {
    /// Creates a store that keeps its tables only in memory.
    pub fn in_memory() -> Self {
        Self { core: Arc::new(Core::in_memory()), _persister: None }
    }

    /// Opens a store in a folder.
    pub fn open(options: ServerOptions, opens: Opens) -> Result<Self, OpenError> {
        let core = Arc::new(Core::open(options, opens)?);
        let persister = Persister::start(&core).map_err(|source| OpenError::Thread { source })?;
        Ok(Self { core, _persister: Some(persister) })
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    /// Creates a core that keeps its tables only in memory.
    pub(crate) fn in_memory() -> Self {
        Self::new(None)
    }

    fn new(log: Option<Persistence>) -> Self {
        let orders = (0..ORDERS).map(|_| Mutex::default()).collect();
        let (tables, ledger) = (Arc::new(Tables::new()), Ledger::default());
        Self {
            tables,
            ledger,
            orders,
            log,
            follower: OnceLock::new(),
            changes: OnceLock::new(),
            lost: LostTables::default(),
            found: None,
            follows: Arc::default(),
        }
    }

    pub(crate) fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// Executes a call, and returns the response to each request. A response of `Ok` to a change means that the change
    /// is as safe as the durability requires, and has reached the follower.
    pub fn answer(&self, call: &Call) -> Vec<Result<Response, Refusal>> {
        let is_usage = |sent: &EncodedRequest| matches!(sent.request, Request::Usage);
        if let Some(follower) = self.follower.get()
            && !call.requests.iter().all(is_usage)
            && let Err(refusal) = follower.await_ready()
        {
            return call.requests.iter().map(|_| Err(refusal.clone())).collect();
        }
        let (mut answers, changed) = self.execute(call);
        if changed && let Err(refusal) = self.commit() {
            // They are applied, but may be lost at a power failure.
            for (answer, sent) in answers.iter_mut().zip(&call.requests) {
                if answer.is_ok() && sent.request.is_change() {
                    *answer = Err(refusal.clone());
                }
            }
        }
        answers
    }

    /// Executes a call, and returns the responses. The flag is whether the call contains changes that must be committed
    /// before the responses are sent.
    pub(crate) fn execute(&self, call: &Call) -> (Vec<Result<Response, Refusal>>, bool) {
        // INV-57
        if self.has_lost(call) {
            return (call.requests.iter().map(|sent| Err(self.lost.refusal(&sent.request))).collect(), false);
        }
        if self.belongs_to_others(call) {
            return (call.requests.iter().map(|sent| Err(self.other_folder(&sent.request))).collect(), false);
        }
        let mut sequence = call.first;
        let mut changed = false;
        let mut bytes = 0usize;
        let mut answers = Vec::with_capacity(call.requests.len());
        for sent in &call.requests {
            answers.push(if sent.request.is_change() {
                changed = true;
                let answer = self.change(call.client, sequence, sent);
                sequence = sequence.wrapping_add(1);
                answer
            } else if bytes >= MAX_ANSWERED {
                Err(too_large(&sent.request, bytes))
            } else {
                let answer = self.read(&sent.request);
                bytes = bytes.saturating_add(answer.as_ref().map_or(0, bytes_of));
                answer
            });
        }
        (answers, changed)
    }

    /// Returns whether this server, which has a follower, has lost a change that it had acknowledged to the client of
    /// `call`. This is so if the client is unknown, and no job has begun since.
    fn has_lost(&self, call: &Call) -> bool {
        call.acknowledged
            && self.follower.get().is_some()
            && self.tables.job() == 0
            && !self.ledger.may_remember(call.client)
    }

    /// Returns whether the folder of this server belongs to other clients: it contains tables, but none of the changes
    /// that were acknowledged to this client. Returns `false` if a job has begun since, because a program that begins a
    /// job restores the state.
    fn belongs_to_others(&self, call: &Call) -> bool {
        call.acknowledged
            && self.found.is_some_and(|job| job == self.tables.job())
            && !self.ledger.may_remember(call.client)
    }

    fn other_folder(&self, request: &Request) -> Refusal {
        let folder =
            self.log.as_ref().map_or_else(String::new, |log| log.journal.folder().display().to_string());
        let text = format!(
            "{}: this server had acknowledged changes of this program, and its folder {folder} has none of \
             them: it belongs to another training or another server. Restore the right folder, and start \
             the server again; or start the chief again, from a checkpoint",
            request.describe()
        );
        Refusal::new(RefusalKind::Lost, text)
    }

    fn read(&self, request: &Request) -> Result<Response, Refusal> {
        if let Request::Changed { table, since } = request {
            return self.changed(table, *since).map_err(|error| self.lost.with_explanation(request, error));
        }
        match self.tables.handle(request) {
            Ok(Response::Usage(usage)) => {
                let copies = self.follower.get().map_or(usage.copies, |follower| follower.copies());
                let follows = self.follows.load(Ordering::Acquire);
                let has_folder = self.log.is_some();
                Ok(Response::Usage(Usage { has_folder, copies, follows, ..usage }))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.lost.with_explanation(request, error.into())),
        }
    }

    /// Applies a change, unless an earlier attempt has already applied it.
    fn change(&self, client: u64, sequence: u64, sent: &EncodedRequest) -> Result<Response, Refusal> {
        // INV-52
        if self.ledger.begin(client, sequence)? == Decision::Applied {
            return Ok(self.tables.repeated(&sent.request));
        }
        // INV-28: checked before it is logged, because a restarted server applies it again.
        if let Err(error) = self.tables.check(&sent.request) {
            self.ledger.done(client, sequence, false);
            return Err(error.into());
        }
        let (log, follower) = (self.log.as_ref(), self.follower.get());
        let is_ordered = log.is_some() || follower.is_some();
        // A request that concerns no single table concerns all tables.
        let _all = (is_ordered && sent.request.table().is_none()).then(|| self.orders());
        let _order = sent.request.table().filter(|_| is_ordered).map(|table| self.order_of(table));
        let mut number = 0;
        // INV-53: before it is applied, and therefore before it is acknowledged.
        let record = || Record { client, sequence, head: sent.head.clone(), body: sent.body.clone() };
        if let Some(log) = log {
            match log.journal.append(&record()) {
                Ok(appended) => number = appended,
                Err(error) => {
                    self.ledger.done(client, sequence, false);
                    return Err(log.full(&sent.request, &error));
                }
            }
        }
        let answer = self.tables.execute(&sent.request);
        let answer = answer.map_err(|error| self.lost.with_explanation(&sent.request, error.into()));
        if let (Some(follower), Ok(_)) = (follower, &answer) {
            follower.add(Change { record: record(), log: number });
        }
        if let (Some(changes), Ok(answer)) = (self.changes.get(), &answer) {
            changes.record(number, &sent.request, answer, &self.tables);
        }
        if let (Some(log), Err(_)) = (log, &answer) {
            let taken_back = Record { client, sequence, head: Default::default(), body: Default::default() };
            // If this fails, the change is refused again when the log is read.
            let _ = log.journal.append(&taken_back);
        }
        self.ledger.done(client, sequence, answer.is_ok());
        answer
    }

    /// Waits until all changes have reached the follower, and are as safe as the durability requires.
    fn commit(&self) -> Result<(), Refusal> {
        // INV-57
        self.follower.get().map_or(Ok(()), |follower| follower.await_arrived())?;
        let Some(log) = &self.log else { return Ok(()) };
        log.journal.commit(log.journal.next()).map_err(|error| {
            let folder = log.journal.folder().display();
            let text = format!(
                "the change was applied, but the disk of {folder} fails, and the change may be lost in a \
                 power failure: {error}"
            );
            Refusal::new(RefusalKind::Storage, text)
        })
    }

    /// Acquires the lock for the order of changes to a table.
    fn order_of(&self, table: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        table.hash(&mut hasher);
        self.orders[(hasher.finish() % ORDERS as u64) as usize].lock()
    }
}

impl Persistence {
    fn full(&self, request: &Request, error: &io::Error) -> Refusal {
        let text = format!(
            "{}: the log in {} cannot be written to: {error}; nothing was changed. Free space there",
            request.describe(),
            self.journal.folder().display()
        );
        Refusal::new(RefusalKind::Storage, text)
    }
}

fn too_large(request: &Request, bytes: usize) -> Refusal {
    let text = format!(
        "{}: the answers to the requests before it, in the same call, have {bytes} bytes, but \
         the maximum is {MAX_ANSWERED}; request less at once",
        request.describe()
    );
    Refusal::new(RefusalKind::TooLarge, text)
}

/// Returns the approximate size of a response in memory, in bytes.
fn bytes_of(answer: &Response) -> usize {
    let all = |values: &HostTensor, slots: &[(String, HostTensor)]| {
        values.memory() + slots.iter().map(|(_, slot)| slot.memory()).sum::<usize>()
    };
    match answer {
        Response::Value(read) => read.value.memory(),
        Response::Rows(rows) => rows.memory(),
        Response::Changed(changed) => changed.values.memory() + 16 * changed.rows.len(),
        Response::State(State::Rows { values, slots, .. }) => all(values, slots),
        Response::State(State::Ids(state)) => all(&state.values, &state.slots) + 16 * state.ids.len(),
        // Each with its name, shape and rule.
        Response::Tables(tables) => tables.iter().map(|table| size_of_val(table) + table.name.len()).sum(),
        _ => 0,
    }
}

impl std::fmt::Debug for Persistence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Persistence({})", self.journal.folder().display())
    }
}
