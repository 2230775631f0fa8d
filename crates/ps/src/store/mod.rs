//! The tables of one server, and the order in which they are changed.
//!
//! | file | what it is |
//! |---|---|
//! | `open` | a server that comes back: the snapshot, and the changes after it |
//! | `keeper` | the threads that save tables, and the log to the disk |
//! | `follower` | changes that are on their way to the server that follows this one, and who waits for them |
//! | `followed` | all of a server's state, as the one that follows it takes and gives it |
//! | `aside` | the files of a state that is replaced |
//! | `life` | the number of a life, in a folder |
//! | `lost` | requests about tables that were lost |
//! | `names` | names of tables, for people |

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
use distribute_params::{Refusal, RefusalKind, Request, Response, State, Tables, Usage};
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

/// Where the answers of a call have so many bytes, no more is read for it: they are in memory together.
const MOST_ANSWERED: usize = 64 << 20;

/// So many locks for the order of changes: tables are dealt out to them by name.
const ORDERS: usize = 64;

/// One server's tables, with a thread that saves them where they are kept.
#[derive(Debug)]
pub(crate) struct Store {
    core: Arc<Core>,
    _keeper: Option<Keeper>,
}

/// What requests are carried out on.
#[derive(Debug)]
pub(crate) struct Core {
    tables: Tables,
    ledger: Ledger,
    /// Who changes a table that is logged, or followed, holds one of these: so changes of a table are made in the order in which they
    /// are in the log, and come to the follower.
    orders: Vec<Mutex<()>>,
    log: Option<Kept>,
    follower: OnceLock<Arc<Follower>>,
    lost: Lost,
    /// The job that had begun last when tables were found in the folder; `None` where none were.
    found: Option<u64>,
    /// The number of servers of which this one has a complete copy.
    follows: Arc<AtomicU64>,
}

/// What a server needs to lose nothing.
pub(crate) struct Kept {
    journal: Journal,
    /// Held while tables are saved.
    saving: Mutex<()>,
    options: ServerOptions,
    /// Keeps other servers out of the folder.
    _lock: LockFile,
}

impl Store {
    /// Tables that are gone with the process.
    pub fn in_memory() -> Self {
        Self { core: Arc::new(Core::in_memory()), _keeper: None }
    }

    /// Tables that are kept in a folder.
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
    /// Tables that are gone with the process.
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

    /// Answers each request of a call, when all that it has changed is as safe as was asked for.
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
            // They are made, but whether they would be after a loss of power is not known.
            for (answer, sent) in answers.iter_mut().zip(&call.requests) {
                if answer.is_ok() && sent.request.is_change() {
                    *answer = Err(refusal.clone());
                }
            }
        }
        answers
    }

    /// Does what a call asks for, and says whether anything was changed, which is not acknowledged yet.
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

    /// Whether a client has had a change acknowledged here that is lost: nothing is known of it, and no job was begun since.
    fn has_lost(&self, call: &Call) -> bool {
        call.acknowledged
            && self.follower.get().is_some()
            && self.tables.job() == 0
            && !self.ledger.may_know(call.client)
    }

    /// Whether a client has had a change acknowledged here, and the folder that this server began with has tables, but no change of that
    /// client. A job that was begun since has restored what it needs.
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

    /// Makes a change, unless it was made for an earlier attempt.
    fn change(&self, client: u64, sequence: u64, sent: &Sent) -> Result<Response, Refusal> {
        // INV-52
        if self.ledger.begin(client, sequence)? == Turn::Applied {
            return Ok(self.tables.repeated(&sent.request));
        }
        // INV-28: before it is logged, as a server that comes back makes it again.
        if let Err(error) = self.tables.check(&sent.request) {
            self.ledger.done(client, sequence, false);
            return Err(error.into());
        }
        let (log, follower) = (self.log.as_ref(), self.follower.get());
        let is_ordered = log.is_some() || follower.is_some();
        // What is of no table is of all.
        let _all = (is_ordered && sent.request.table().is_none()).then(|| self.orders());
        let _order = sent.request.table().filter(|_| is_ordered).map(|table| self.order_of(table));
        let mut number = 0;
        // INV-53: before it is made, and so before it is acknowledged.
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
            // Without it, the change is refused again when the log is read.
            let _ = log.journal.append(&taken_back);
        }
        self.ledger.done(client, sequence, answer.is_ok());
        answer
    }

    /// Waits until what was changed is as safe as was asked for, and on the follower.
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

    /// The order of changes to a table.
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

/// About how many bytes an answer has in memory.
fn bytes_of(answer: &Response) -> usize {
    let all = |values: &HostTensor, slots: &[(String, HostTensor)]| {
        values.memory() + slots.iter().map(|(_, slot)| slot.memory()).sum::<usize>()
    };
    match answer {
        Response::Value(read) => read.value.memory(),
        Response::Rows(rows) => rows.memory(),
        Response::State(State::Rows { values, slots, .. }) => all(values, slots),
        Response::State(State::Ids(state)) => all(&state.values, &state.slots) + 16 * state.ids.len(),
        // Each with its name, and shape, and rule.
        Response::Tables(tables) => tables.iter().map(|table| size_of_val(table) + table.name.len()).sum(),
        _ => 0,
    }
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kept({})", self.journal.folder().display())
    }
}
