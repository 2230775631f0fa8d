//! Bugs that are planted to see that the simulation finds them. Each is put between a machine and the world that drives it, so
//! that the code which real processes run has none of them.

use crate::network::Pid;
use distribute_collective::group::{Frame, Said};
use distribute_net::JoinError;
use distribute_net::handshake::{Hello, Purpose, Reason, Refusal};
use distribute_net::rendezvous::membership::Membership;
use distribute_net::rendezvous::note::Note;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Frames of a session that is over are taken for those of the present one: no fence.
    SessionFence,
    /// A frame of a past round is taken for one of the present round.
    RoundFence,
    /// The time that a call may wait never passes.
    NoDeadline,
    /// The worker that judges tells nobody.
    VerdictUnsaid,
    /// Frames of rounds that have not begun are dropped.
    EarlyDropped,
    /// Any call is taken to be the same as one's own.
    DigestIgnored,
    /// The generation of a link is not compared: no fence between worlds.
    GenerationIgnored,
    /// A second worker of a number is let in.
    TakenIgnored,
    /// The loss of a worker is not told to the session.
    LossIgnored,
    /// After the deadline nobody is waited for: each worker judges by what it knows.
    NoGrace,
    /// Who was late is not told.
    LateForgotten,
    /// A worker that takes no part in a call says nothing.
    DeclineUnsaid,
    /// That a worker has left the session is not heard.
    LeaveUnheard,
    /// The loss of a worker is told before what came from it.
    LossFirst,
    /// The leader doesn't wait for the last worker.
    TableEarly,
    /// The leader makes the generation after its own, not the one after all that there were.
    MaximumIgnored,
    /// Who was left behind when the others met again doesn't come as one that has just started.
    ClaimKept,
    /// Who has lost another while they met doesn't come again.
    LossGivesUp,
    /// A place that another process has is not tried for again.
    TakenGivesUp,
    /// A worker of a complete world doesn't say that it has lost one, which comes again.
    EarlyUnsaid,
    /// Who leaves a world to meet the others again says what one says that has ended.
    LeaveAsEnd,
    /// What came in the world before is kept in the next one.
    SessionKept,
    /// The state is taken over from the first, not from the furthest.
    FurthestIgnored,
    /// A state that was taken over counts only when all have it.
    TakenUncounted,
    /// Half a step is taken for a whole one.
    TornIgnored,
    /// Steps that are made again are counted again.
    RewindForgotten,
    /// A world is made of fewer workers than the least.
    LeastIgnored,
    /// A world that is made of those that are there is told to be one of all.
    TableOfAll,
    /// A batch is dealt over all workers that there may be, not over those that there are.
    DealtAsBefore,
    /// A step begins although others wait to take part.
    WaitingIgnored,
    /// A leader that has begun anew while the others were in a later world keeps to its own.
    SupplantedKept,
    /// What comes of a session with a worker counts although that was lost.
    LostHeard,
    /// A worker is connected to again, and the coordinator isn't told that it was lost.
    LossUntold,
    /// A worker gives a closure back that it runs.
    RunningReturned,
    /// An attempt that is repeated has taken its elements for good.
    AttemptMoves,
    /// A worker that comes back makes its resources where they began.
    PositionForgotten,
    /// A worker that comes back is taken to have its resources still.
    ResourceKept,
    /// All workers may make variables.
    VariablesTwice,
    /// A closure that ends when it has been cancelled ends twice.
    OutcomeTwice,
    /// A closure is taken to have ended that has not.
    FloorHigh,
    /// A worker has more closures than it may.
    WindowExceeded,
    /// More closures wait than may.
    QueueUnbounded,
    /// Who runs a closure is not told that nobody wants it.
    CancelUnsent,
    /// Servers don't remember which changes of a closure they have made.
    NoLedger,
    /// Work for a session that is over is taken for the present one.
    AnySession,
    /// A worker runs a second closure meanwhile.
    TwoAtOnce,
    /// A session goes on when there is another one.
    SessionLives,
    /// A worker works for a coordinator that was replaced.
    OldJob,
}

impl Planted {
    /// A frame on its way to other workers; `None` if it goes nowhere.
    pub fn sends(self, mut frame: Frame) -> Option<Frame> {
        match (self, &mut frame.said) {
            (Planted::VerdictUnsaid, Said::Verdict(_)) => return None,
            (Planted::LateForgotten, Said::Standings { late, .. }) => late.clear(),
            _ => {}
        }
        Some(frame)
    }

    /// A frame that a worker takes, which has begun this round and makes this call.
    pub fn takes(self, mut frame: Frame, round: u64, own: Option<u64>) -> Option<Frame> {
        match (self, &mut frame.said) {
            (Planted::RoundFence, _) if frame.round < round => frame.round = round,
            (Planted::EarlyDropped, _) if frame.round > round => return None,
            (Planted::LeaveUnheard, Said::Left { .. }) => return None,
            (Planted::DigestIgnored, Said::Call { digest, .. }) => *digest = own.unwrap_or(*digest),
            _ => {}
        }
        Some(frame)
    }

    /// What a worker takes somebody for who has connected.
    pub fn meets(self, mut theirs: Hello, members: &Membership) -> Hello {
        if self == Planted::GenerationIgnored && theirs.purpose == Purpose::Link {
            theirs.generation = members.generation();
        }
        theirs
    }

    /// What a leader tells the others.
    pub fn makes(self, table: Note, members: &Membership) -> Note {
        let before = members.before();
        match table {
            Note::Table(generation, _) if self == Planted::TableOfAll => {
                Note::Table(generation, members.addresses().iter().cloned().enumerate().collect())
            }
            Note::Table(_, addresses) if self == Planted::MaximumIgnored => {
                Note::Table(before + 1, addresses)
            }
            table => table,
        }
    }

    /// Whether a worker that was refused for this reason gives up.
    pub fn gives_up(self, refusal: &Refusal) -> bool {
        self == Planted::TakenGivesUp && refusal.reason == Reason::Taken
    }

    /// Whether a worker that could not join gives up.
    pub fn ends(self, error: &JoinError) -> bool {
        match error {
            JoinError::Lost { .. } => self == Planted::LossGivesUp,
            JoinError::Refused { .. } => self == Planted::ClaimKept,
            _ => false,
        }
    }

    /// Whether somebody is let in all the same.
    pub fn admits(self, refusal: &Refusal) -> bool {
        self == Planted::TakenIgnored && refusal.reason == Reason::Taken
    }

    /// Whether the leader takes the world to be complete with so many missing.
    pub fn completes(self, pid: Pid, missing: usize) -> bool {
        self == Planted::TableEarly && pid == 0 && missing == 1
    }
}
