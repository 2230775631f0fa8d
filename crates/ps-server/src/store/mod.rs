//! The tables of one server, and the order in which they are changed.
//!
//! | file | contents |
//! |---|---|
//! | `open` | the restart of a server: the snapshot, and the changes after it |
//! | `keeper` | the threads that save tables and sync the log |
//! | `follower` | changes in flight to the follower, and the threads that wait for them |
//! | `followed` | the server's state, as it is transferred to and from its follower |
//! | `aside` | copies of a state that is replaced |
//! | `life` | the number of a life, in a folder |
//! | `lost` | requests about tables that were lost |
//! | `names` | lists of names for messages |

mod aside;
mod followed;
mod follower;
mod keeper;
mod life;
mod lost;
mod names;
mod open;
#[cfg(test)]
mod tests;

use crate::codec::{Call, Sent};
use crate::ledger::{Ledger, Turn};
use crate::log::{Journal, Opens, Record};
use crate::{OpenError, ServerOptions};
use distribute_files::LockFile;
use distribute_ps_tables::{Refusal, RefusalKind, Request, Response, State, Tables, Usage};
use distribute_tensor::HostTensor;
pub(crate) use followed::Known;
pub(crate) use follower::{Change, Follower};
pub(crate) use keeper::End;
use keeper::Keeper;
use lost::Lost;
pub(crate) use names::listed;
pub(crate) use open::{files, hold};
use parking_lot::{Mutex, MutexGuard};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The number of bytes of a call's responses after which no more is read for it, because they are in memory
/// together.
const MOST_ANSWERED: usize = 64 << 20;

/// The number of locks for the order of changes, which are assigned to tables by name.
const ORDERS: usize = 64;

/// One server's tables, and the thread that saves them if there is a folder.
#[derive(Debug)]
pub(crate) struct Store {
    core: Arc<Core>,
    _keeper: Option<Keeper>,
}

/// The state that requests are executed on.
#[derive(Debug)]
pub(crate) struct Core {
    tables: Tables,
    ledger: Ledger,
    /// The locks for the order of changes. A change of a table that is logged or replicated holds one of these,
    /// so that changes of a table are applied in the order of the log, and reach the follower in this order.
    orders: Vec<Mutex<()>>,
    log: Option<Kept>,
    follower: OnceLock<Arc<Follower>>,
    lost: Lost,
    /// The current job when tables were found in the folder; `None` if there were none.
    found: Option<u64>,
    /// The number of servers of which this one has a complete copy.
    follows: Arc<AtomicU64>,
}

/// The persistence of a server.
pub(crate) struct Kept {
    journal: Journal,
    /// Held while tables are saved.
    saving: Mutex<()>,
    options: ServerOptions,
    /// Keeps other servers out of the folder.
    _lock: LockFile,
}

impl Store {
    /// Creates a store in memory.
    pub fn in_memory() -> Self {
        Self { core: Arc::new(Core::in_memory()), _keeper: None }
    }

    /// Opens a store in a folder.
    pub fn open(options: ServerOptions, opens: Opens) -> Result<Self, OpenError> {
        let core = Arc::new(Core::open(options, opens)?);
        let keeper = Keeper::start(&core).map_err(|source| OpenError::Thread { source })?;
        Ok(Self { core, _keeper: Some(keeper) })
    }

    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Core {
    /// Creates a core in memory.
    pub(crate) fn in_memory() -> Self {
        Self::new(None)
    }

    fn new(log: Option<Kept>) -> Self {
        let orders = (0..ORDERS).map(|_| Mutex::default()).collect();
        let (tables, ledger) = (Tables::new(), Ledger::default());
        Self {
            tables,
            ledger,
            orders,
            log,
            follower: OnceLock::new(),
            lost: Lost::default(),
            found: None,
            follows: Arc::default(),
        }
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Responds to each request of a call, after all of its changes are as safe as the durability requires.
    pub fn answer(&self, call: &Call) -> Vec<Result<Response, Refusal>> {
        let is_usage = |sent: &Sent| matches!(sent.request, Request::Usage);
        if let Some(follower) = self.follower.get()
            && !call.requests.iter().all(is_usage)
            && let Err(refusal) = follower.await_ready()
        {
            return call.requests.iter().map(|_| Err(refusal.clone())).collect();
        }
        let (mut answers, changed) = self.make(call);
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

    /// Executes a call, and returns whether anything was changed that is not acknowledged yet.
    pub(crate) fn make(&self, call: &Call) -> (Vec<Result<Response, Refusal>>, bool) {
        // INV-57
        if self.has_lost(call) {
            return (call.requests.iter().map(|sent| Err(self.lost.refusal(&sent.request))).collect(), false);
        }
        if self.is_of_others(call) {
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
            } else if bytes >= MOST_ANSWERED {
                Err(too_large(&sent.request, bytes))
            } else {
                let answer = self.read(&sent.request);
                bytes = bytes.saturating_add(answer.as_ref().map_or(0, bytes_of));
                answer
            });
        }
        (answers, changed)
    }

    /// Returns whether a change that was acknowledged to a client is lost: the client is unknown, and no job
    /// was begun since.
    fn has_lost(&self, call: &Call) -> bool {
        call.acknowledged
            && self.follower.get().is_some()
            && self.tables.job() == 0
            && !self.ledger.may_know(call.client)
    }

    /// Returns whether a client had changes acknowledged here, but the folder that this server began with has
    /// tables and none of its changes. A job that was begun since has restored its state.
    fn is_of_others(&self, call: &Call) -> bool {
        call.acknowledged
            && self.found.is_some_and(|job| job == self.tables.job())
            && !self.ledger.may_know(call.client)
    }

    fn other_folder(&self, request: &Request) -> Refusal {
        let folder =
            self.log.as_ref().map_or_else(String::new, |log| log.journal.folder().display().to_string());
        let text = format!(
            "{}: this server had acknowledged changes of this program, and its folder {folder} has none of them: it is another training's, or \
             another server's. Put its own folder back, and start the server again; or start the chief again, from a checkpoint",
            request.describe()
        );
        Refusal::new(RefusalKind::Lost, text)
    }

    fn read(&self, request: &Request) -> Result<Response, Refusal> {
        match self.tables.handle(request) {
            Ok(Response::Usage(usage)) => {
                let copies = self.follower.get().map_or(usage.copies, |follower| follower.copies());
                let follows = self.follows.load(Ordering::Acquire);
                let has_folder = self.log.is_some();
                Ok(Response::Usage(Usage { has_folder, copies, follows, ..usage }))
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.lost.explained(request, error.into())),
        }
    }

    /// Applies a change, unless an earlier attempt has applied it.
    fn change(&self, client: u64, sequence: u64, sent: &Sent) -> Result<Response, Refusal> {
        // INV-52
        if self.ledger.begin(client, sequence)? == Turn::Applied {
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
        let answer = self.tables.carry_out(&sent.request);
        let answer = answer.map_err(|error| self.lost.explained(&sent.request, error.into()));
        if let (Some(follower), Ok(_)) = (follower, &answer) {
            follower.add(Change { record: record(), log: number });
        }
        if let (Some(log), Err(_)) = (log, &answer) {
            let taken_back = Record { client, sequence, head: Default::default(), body: Default::default() };
            // If this fails, the change is refused again when the log is read.
            let _ = log.journal.append(&taken_back);
        }
        self.ledger.done(client, sequence, answer.is_ok());
        answer
    }

    /// Waits until all changes are as safe as the durability requires, and on the follower.
    fn commit(&self) -> Result<(), Refusal> {
        // INV-57
        self.follower.get().map_or(Ok(()), |follower| follower.await_arrived())?;
        let Some(log) = &self.log else { return Ok(()) };
        log.journal.commit(log.journal.next()).map_err(|error| {
            let folder = log.journal.folder().display();
            let text = format!(
                "the change was made, but the disk of {folder} fails, and the change may be gone when the machine loses its power: \
                 {error}"
            );
            Refusal::new(RefusalKind::Storage, text)
        })
    }

    /// Returns the lock for the order of changes to a table.
    fn order_of(&self, table: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        table.hash(&mut hasher);
        self.orders[(hasher.finish() % ORDERS as u64) as usize].lock()
    }
}

impl Kept {
    fn full(&self, request: &Request, error: &io::Error) -> Refusal {
        let text = format!(
            "{}: the log in {} cannot be written to: {error}; nothing was changed. Make room there",
            request.describe(),
            self.journal.folder().display()
        );
        Refusal::new(RefusalKind::Storage, text)
    }
}

fn too_large(request: &Request, bytes: usize) -> Refusal {
    let text = format!(
        "{}: the answers to the requests before it, in the same call, have {bytes} bytes, and no more are read once there are \
         {MOST_ANSWERED}; ask for less at once",
        request.describe()
    );
    Refusal::new(RefusalKind::TooLarge, text)
}

/// Returns the approximate number of bytes of a response in memory.
fn bytes_of(answer: &Response) -> usize {
    let all = |values: &HostTensor, slots: &[(String, HostTensor)]| {
        values.memory() + slots.iter().map(|(_, slot)| slot.memory()).sum::<usize>()
    };
    match answer {
        Response::Value(read) => read.value.memory(),
        Response::Rows(rows) => rows.memory(),
        Response::State(State::Rows { values, slots, .. }) => all(values, slots),
        Response::State(State::Ids(state)) => all(&state.values, &state.slots) + 16 * state.ids.len(),
        // Each with its name, shape and rule.
        Response::Tables(tables) => tables.iter().map(|table| size_of_val(table) + table.name.len()).sum(),
        _ => 0,
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({})", self.journal.folder().display())
    }
}
