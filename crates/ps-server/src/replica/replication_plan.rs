//! The protocol between a server and its follower, as a state machine without threads and clocks. It sends one request
//! at a time.

use super::message::{FollowerRequest, FollowerResponse, Position, ServerLife};
use crate::store::{Core, Follower, StateHeader, listed};
use distribute_ps_tables::TableImage;

/// The connection of a server to its follower.
pub(super) trait FollowerLink {
    /// Sends a request to the follower, and waits for its response.
    fn ask(&mut self, ask: FollowerRequest) -> Result<FollowerResponse, String>;
    /// Blocks changes until [`release`](Self::release) is called, and waits for those in progress.
    fn hold(&mut self);
    /// Allows changes again.
    fn release(&mut self);
    /// Logs a warning.
    fn warn(&mut self, text: String);
}

/// The next request of a server to its follower, and the effects of the response.
#[derive(Debug)]
pub(super) struct ReplicationPlan {
    /// The name of the follower, for messages.
    to: String,
    server: u64,
    phase: Phase,
    /// The random number of the follower's process to which this server was last connected.
    run: Option<u64>,
    /// The latest life of this server of which the follower has had a copy, and the names of the tables in that copy.
    /// They are remembered until this server begins its own life, because the follower may be lost before.
    seen: (u64, Vec<String>),
}

#[derive(Debug)]
enum Phase {
    /// The connection is new, and the state of the follower is unknown.
    Connected,
    /// The follower's copy is being fetched.
    Fetching {
        of: ServerLife,
        broken: bool,
        header: Option<StateHeader>,
        left: Vec<String>,
        taken: Vec<TableImage>,
    },
    /// The follower has the state of this server, but under the number of the previous life.
    Adopting { of: ServerLife },
    /// The complete state is about to be sent.
    Opening,
    /// The state is being sent, with all changes before `next`, while changes are blocked.
    Sending { next: u64, left: Vec<String> },
    /// The follower has a copy, and receives changes.
    Following,
}

/// The state with which a server begins a life.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The server's own tables.
    Own,
    /// The tables of its follower's copy.
    Fetched,
    /// No tables, because a life greater than the server's own exists, but no complete copy of its state.
    LostTables,
}

// INV-57
/// Decides with which state a server begins: its own or that of its follower, whichever is newer. `own` is the server's
/// life and the number of its log's next record. `found` is the position of the follower's copy. `seen` is the greatest
/// life of which the follower has had a copy, even an incomplete one.
pub(super) fn start(own: (u64, u64), found: &Position, seen: u64) -> Start {
    let (life, log) = own;
    // The log has each change before it is sent, unless the machine has lost power.
    if found.life > life || found.life == life && life > 0 && found.log > log {
        Start::Fetched
    } else if seen > life {
        Start::LostTables
    } else {
        Start::Own
    }
}

impl ReplicationPlan {
    pub fn new(to: String, server: u64) -> Self {
        Self { to, server, phase: Phase::Connected, run: None, seen: (0, Vec::new()) }
    }

    /// Starts the protocol again after the connection was lost, because the follower's state is then unknown. Unblocks
    /// changes.
    pub fn restart(&mut self, follower: &Follower, link: &mut impl FollowerLink) {
        self.phase = Phase::Connected;
        link.release();
        follower.update(|state| state.is_copied = false);
    }

    /// Returns whether the follower has restarted since this server has connected to it.
    pub fn is_old(&self, follower: &Follower) -> bool {
        let asked = follower.lock().asked;
        self.run.is_some() && asked.is_some() && asked != self.run
    }

    /// Sends the next request, if there is one. Returns whether a request was sent.
    ///
    /// # Errors
    /// Returns a message if the follower has not executed the request. The caller must then call
    /// [`restart`](Self::restart).
    pub fn step(
        &mut self,
        core: &Core,
        follower: &Follower,
        link: &mut impl FollowerLink,
    ) -> Result<bool, String> {
        let life = follower.lock().life;
        match &mut self.phase {
            Phase::Connected => {
                let FollowerResponse::Position(found) =
                    link.ask(FollowerRequest::Position { server: self.server })?.accepted()?
                else {
                    return Err(other());
                };
                self.run = Some(found.run);
                if life == 0 {
                    self.begin(core, follower, found, link)?
                } else {
                    self.resume(follower, found, life)?
                }
            }
            Phase::Fetching { of, broken, header, left, taken } => {
                if header.is_none() {
                    let FollowerResponse::StateHeader(answer) =
                        link.ask(FollowerRequest::StateHeader(*of))?.accepted()?
                    else {
                        return Err(other());
                    };
                    left.clone_from(&answer.tables);
                    *header = Some(*answer);
                } else if let Some(name) = left.last() {
                    let table = link.ask(FollowerRequest::Table(*of, name.clone()))?.accepted()?;
                    let FollowerResponse::Table(image) = table else { return Err(other()) };
                    taken.push(*image);
                    left.pop();
                }
                if left.is_empty() {
                    let (of, broken, taken) = (*of, *broken, std::mem::take(taken));
                    let Some(header) = header.take() else { return Err(other()) };
                    link.warn(format!(
                        "this server continues with {} of its tables that {} has a copy of",
                        taken.len(),
                        self.to
                    ));
                    let next = next_life(of.life)?;
                    core.replace(taken, header)?;
                    self.live(core, follower, next)?;
                    self.phase = if broken { Phase::Opening } else { Phase::Adopting { of } };
                }
            }
            Phase::Adopting { of } => {
                link.ask(FollowerRequest::Adopt(*of, life))?.done()?;
                self.copied(follower, 0);
            }
            Phase::Opening => {
                link.hold();
                let next = follower.lock().next();
                let header = core.header();
                let mut left = header.tables.clone();
                left.reverse();
                link.ask(FollowerRequest::Begin(self.of(life), Box::new(header)))?.done()?;
                self.phase = Phase::Sending { next, left };
            }
            Phase::Sending { next, left } => match left.last() {
                Some(name) => {
                    let image = core.image(name).map_err(|error| error.to_string())?;
                    let image = image.ok_or_else(|| format!("there is no table {name}"))?;
                    link.ask(FollowerRequest::Put(
                        ServerLife { server: self.server, life },
                        Box::new(image),
                    ))?
                    .done()?;
                    left.pop();
                }
                None => {
                    let next = *next;
                    link.ask(FollowerRequest::End(self.of(life), next, core.next_record()))?.done()?;
                    link.release();
                    self.copied(follower, next);
                }
            },
            Phase::Following => {
                let (first, changes) = {
                    let state = follower.lock();
                    (state.first, state.next_batch())
                };
                if changes.is_empty() {
                    return Ok(false);
                }
                let next = first + changes.len() as u64;
                link.ask(FollowerRequest::Changes(self.of(life), first, changes))?.done()?;
                follower.update(|state| state.arrived(next));
            }
        }
        Ok(true)
    }

    // INV-57
    /// Begins a life with the newer state: this server's own, or that of its follower, which is fetched first. If the
    /// newer state is lost, begins without tables.
    fn begin(
        &mut self,
        core: &Core,
        follower: &Follower,
        found: Position,
        link: &mut impl FollowerLink,
    ) -> Result<(), String> {
        let own = core.life().map_err(|error| error.to_string())?;
        for (life, tables) in found.incomplete.iter().chain([&(found.life, found.tables.clone())]) {
            if *life > self.seen.0 {
                self.seen = (*life, tables.clone());
            }
        }
        match start((own, core.next_record()), &found, self.seen.0) {
            Start::Fetched => {
                let of = self.of(found.life);
                let (broken, left, taken) = (found.broken, Vec::new(), Vec::new());
                self.phase = Phase::Fetching { of, broken, header: None, left, taken };
                return Ok(());
            }
            Start::LostTables => {
                let lost = std::mem::take(&mut self.seen.1);
                if !lost.is_empty() {
                    link.warn(format!(
                        "this server has lost its tables {}: it exited before {}, its follower, had a \
                         complete copy again after a restart. Start the chief again, from a checkpoint",
                        self.to,
                        listed(&lost)
                    ));
                }
                core.replace(Vec::new(), StateHeader { lost, ..StateHeader::default() })?;
            }
            Start::Own => {}
        }
        let life = next_life(own.max(self.seen.0))?;
        self.live(core, follower, life)?;
        self.phase = Phase::Opening;
        Ok(())
    }

    /// Resumes at the follower's position, or prepares to send the complete state.
    ///
    /// # Errors
    /// Returns a message if the follower knows a later life of this server, which means that another process has
    /// replaced it.
    fn resume(&mut self, follower: &Follower, found: Position, life: u64) -> Result<(), String> {
        let newest = found.incomplete.as_ref().map_or(0, |(life, _)| *life).max(found.life);
        if newest > life {
            return Err(format!(
                "{} has life {newest} of this server, which has life {life}: another process has replaced \
                 it",
                self.to
            ));
        }
        let can_resume = {
            let state = follower.lock();
            found.life == life && !found.broken && (state.first..=state.next()).contains(&found.changes)
        };
        if can_resume {
            self.copied(follower, found.changes);
        } else {
            self.phase = Phase::Opening;
        }
        Ok(())
    }

    /// Begins the given life. This server then has a state, and executes requests.
    fn live(&mut self, core: &Core, follower: &Follower, life: u64) -> Result<(), String> {
        core.set_life(life).map_err(|error| error.to_string())?;
        follower.update(|state| state.life = life);
        self.seen = (0, Vec::new());
        Ok(())
    }

    /// Records that the follower has a complete copy, with all changes before number `before`.
    fn copied(&mut self, follower: &Follower, before: u64) {
        follower.update(|state| {
            state.arrived(before);
            state.is_copied = state.lost.is_none();
        });
        self.phase = Phase::Following;
    }

    fn of(&self, life: u64) -> ServerLife {
        ServerLife { server: self.server, life }
    }
}

impl FollowerResponse {
    fn accepted(self) -> Result<Self, String> {
        match self {
            Self::Refused(text) => Err(text),
            answer => Ok(answer),
        }
    }

    fn done(self) -> Result<(), String> {
        match self.accepted()? {
            Self::Done => Ok(()),
            _ => Err(other()),
        }
    }
}

fn next_life(life: u64) -> Result<u64, String> {
    life.checked_add(1).ok_or_else(|| format!("there is no life after {life}"))
}

fn other() -> String {
    "it answers something else: are both of the same build?".to_owned()
}
