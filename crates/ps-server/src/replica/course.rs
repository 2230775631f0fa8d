//! The protocol of a server with its follower, as a state machine: one request at a time, without a thread or a
//! clock.

use super::message::{Answer, Ask, Of, Position};
use crate::store::{Core, Follower, Known, listed};
use distribute_ps_tables::TableImage;

/// The connection of a server to its follower.
pub(super) trait Way {
    /// Sends a request to the follower, and waits for its response.
    fn ask(&mut self, ask: Ask) -> Result<Answer, String>;
    /// Blocks changes until [`release`](Self::release), and waits for those in progress.
    fn hold(&mut self);
    /// Allows changes again.
    fn release(&mut self);
    /// Warns the user.
    fn tell(&mut self, text: String);
}

/// The next request of a server to its follower, and the effects of the response.
#[derive(Debug)]
pub(super) struct Course {
    /// The name of the follower, for messages.
    to: String,
    server: u64,
    phase: Phase,
    /// The run of the last follower that this server has connected to.
    run: Option<u64>,
    /// The greatest life of this server of which the follower has had a copy, and its tables. It is kept until
    /// this life begins, because the follower may be lost as well.
    seen: (u64, Vec<String>),
}

#[derive(Debug)]
enum Phase {
    /// The connection is new, and the state of the follower is unknown.
    Meeting,
    /// The follower's copy is being fetched.
    Taking { of: Of, broken: bool, known: Option<Known>, left: Vec<String>, taken: Vec<TableImage> },
    /// The follower has the same state as this server, under the number of the previous life.
    Adopting { of: Of },
    /// The state is about to be sent.
    Opening,
    /// The state is being sent. It has all changes before `next`, and no more are made.
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
    Taken,
    /// No tables: there is no complete copy of a life that is greater than the server's own.
    Lost,
}

// INV-57
/// Decides with which state a server begins: the newer one of its own and its follower's. `own` is its life and
/// the number of the next record of its log. `seen` is the greatest life of which its follower is known to have
/// had a copy, complete or not.
pub(super) fn start(own: (u64, u64), found: &Position, seen: u64) -> Start {
    let (life, log) = own;
    // The log has each change before it is sent, unless the machine has lost power.
    if found.life > life || found.life == life && life > 0 && found.log > log {
        Start::Taken
    } else if seen > life {
        Start::Lost
    } else {
        Start::Own
    }
}

impl Course {
    pub fn new(to: String, server: u64) -> Self {
        Self { to, server, phase: Phase::Meeting, run: None, seen: (0, Vec::new()) }
    }

    /// Starts again after the connection was lost, because the state of the follower is unknown.
    pub fn restart(&mut self, follower: &Follower, way: &mut impl Way) {
        self.phase = Phase::Meeting;
        way.release();
        follower.update(|state| state.is_copied = false);
    }

    /// Returns whether the follower has restarted since the last connection.
    pub fn is_old(&self, follower: &Follower) -> bool {
        let asked = follower.lock().asked;
        self.run.is_some() && asked.is_some() && asked != self.run
    }

    /// Sends the next request, if there is one, and returns whether there was.
    ///
    /// # Errors
    /// Returns a message if the follower has not executed the request. The caller must then call
    /// [`restart`](Self::restart).
    pub fn step(&mut self, core: &Core, follower: &Follower, way: &mut impl Way) -> Result<bool, String> {
        let life = follower.lock().life;
        match &mut self.phase {
            Phase::Meeting => {
                let Answer::Position(found) = way.ask(Ask::Position { server: self.server })?.accepted()?
                else {
                    return Err(other());
                };
                self.run = Some(found.run);
                if life == 0 {
                    self.begin(core, follower, found, way)?
                } else {
                    self.go_on(follower, found, life)?
                }
            }
            Phase::Taking { of, broken, known, left, taken } => {
                if known.is_none() {
                    let Answer::Known(answer) = way.ask(Ask::Known(*of))?.accepted()? else {
                        return Err(other());
                    };
                    left.clone_from(&answer.tables);
                    *known = Some(*answer);
                } else if let Some(name) = left.last() {
                    let table = way.ask(Ask::Table(*of, name.clone()))?.accepted()?;
                    let Answer::Table(image) = table else { return Err(other()) };
                    taken.push(*image);
                    left.pop();
                }
                if left.is_empty() {
                    let (of, broken, taken) = (*of, *broken, std::mem::take(taken));
                    let Some(known) = known.take() else { return Err(other()) };
                    way.tell(format!(
                        "this server goes on with {} tables that {} has of it",
                        taken.len(),
                        self.to
                    ));
                    let next = next_life(of.life)?;
                    core.replace(taken, known)?;
                    self.live(core, follower, next)?;
                    self.phase = if broken { Phase::Opening } else { Phase::Adopting { of } };
                }
            }
            Phase::Adopting { of } => {
                way.ask(Ask::Adopt(*of, life))?.done()?;
                self.copied(follower, 0);
            }
            Phase::Opening => {
                way.hold();
                let next = follower.lock().next();
                let known = core.known();
                let mut left = known.tables.clone();
                left.reverse();
                way.ask(Ask::Begin(self.of(life), Box::new(known)))?.done()?;
                self.phase = Phase::Sending { next, left };
            }
            Phase::Sending { next, left } => match left.last() {
                Some(name) => {
                    let image = core.image(name).map_err(|error| error.to_string())?;
                    let image = image.ok_or_else(|| format!("there is no table {name}"))?;
                    way.ask(Ask::Put(Of { server: self.server, life }, Box::new(image)))?.done()?;
                    left.pop();
                }
                None => {
                    let next = *next;
                    way.ask(Ask::End(self.of(life), next, core.next_record()))?.done()?;
                    way.release();
                    self.copied(follower, next);
                }
            },
            Phase::Following => {
                let (first, changes) = {
                    let state = follower.lock();
                    (state.first, state.some())
                };
                if changes.is_empty() {
                    return Ok(false);
                }
                let next = first + changes.len() as u64;
                way.ask(Ask::Changes(self.of(life), first, changes))?.done()?;
                follower.update(|state| state.arrived(next));
            }
        }
        Ok(true)
    }

    // INV-57
    /// Begins a life, with the newer state of this server's and its follower's.
    fn begin(
        &mut self,
        core: &Core,
        follower: &Follower,
        found: Position,
        way: &mut impl Way,
    ) -> Result<(), String> {
        let own = core.life().map_err(|error| error.to_string())?;
        for (life, tables) in found.incomplete.iter().chain([&(found.life, found.tables.clone())]) {
            if *life > self.seen.0 {
                self.seen = (*life, tables.clone());
            }
        }
        match start((own, core.next_record()), &found, self.seen.0) {
            Start::Taken => {
                let of = self.of(found.life);
                let (broken, left, taken) = (found.broken, Vec::new(), Vec::new());
                self.phase = Phase::Taking { of, broken, known: None, left, taken };
                return Ok(());
            }
            Start::Lost => {
                let lost = std::mem::take(&mut self.seen.1);
                if !lost.is_empty() {
                    way.tell(format!(
                        "this server has lost its tables: it was ended before {}, which follows it and had been ended, had a complete \
                         copy again; lost are {}. Start the chief again, from a checkpoint",
                        self.to,
                        listed(&lost)
                    ));
                }
                core.replace(Vec::new(), Known { lost, ..Known::default() })?;
            }
            Start::Own => {}
        }
        let life = next_life(own.max(self.seen.0))?;
        self.live(core, follower, life)?;
        self.phase = Phase::Opening;
        Ok(())
    }

    /// Resumes at the follower's position, or sends it the whole state.
    fn go_on(&mut self, follower: &Follower, found: Position, life: u64) -> Result<(), String> {
        let newest = found.incomplete.as_ref().map_or(0, |(life, _)| *life).max(found.life);
        if newest > life {
            return Err(format!(
                "{} has life {newest} of this server, which has life {life}: another one has taken its place",
                self.to
            ));
        }
        let known = {
            let state = follower.lock();
            found.life == life && !found.broken && (state.first..=state.next()).contains(&found.changes)
        };
        if known {
            self.copied(follower, found.changes);
        } else {
            self.phase = Phase::Opening;
        }
        Ok(())
    }

    /// Begins a life: from now on this server has a state, and responds to requests.
    fn live(&mut self, core: &Core, follower: &Follower, life: u64) -> Result<(), String> {
        core.set_life(life).map_err(|error| error.to_string())?;
        follower.update(|state| state.life = life);
        self.seen = (0, Vec::new());
        Ok(())
    }

    /// Records that the follower has a complete copy, with all changes before a number.
    fn copied(&mut self, follower: &Follower, before: u64) {
        follower.update(|state| {
            state.arrived(before);
            state.is_copied = state.lost.is_none();
        });
        self.phase = Phase::Following;
    }

    fn of(&self, life: u64) -> Of {
        Of { server: self.server, life }
    }
}

impl Answer {
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

/// Returns the number of the next life.
fn next_life(life: u64) -> Result<u64, String> {
    life.checked_add(1).ok_or_else(|| format!("there is no life after {life}"))
}

fn other() -> String {
    "it answers something else: are both of the same build?".to_owned()
}
