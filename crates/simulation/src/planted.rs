//! Planted bugs, which the simulation must detect. Each bug is between a state machine and its driver in the
//! simulation, so the code of real processes contains none of them.

use crate::network::Pid;
use distribute_collective::group::{Frame, Said};
use distribute_net::JoinError;
use distribute_net::handshake::{Hello, Purpose, Reason, Refusal};
use distribute_net::rendezvous::membership::Membership;
use distribute_net::rendezvous::note::Note;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Frames of a session that is over are accepted in the current session: no fence.
    SessionFence,
    /// A frame of a past round is accepted in the current round.
    RoundFence,
    /// The timeout of a call never passes.
    NoDeadline,
    /// The worker that decides does not send its decision.
    VerdictUnsaid,
    /// Frames of rounds that have not begun are dropped.
    EarlyDropped,
    /// Every call is accepted as equal to the worker's own.
    DigestIgnored,
    /// The generation of a link is not compared: no fence between worlds.
    GenerationIgnored,
    /// A second process of a worker is accepted.
    TakenIgnored,
    /// The session is not notified of the loss of a worker.
    LossIgnored,
    /// After the deadline there is no grace period: each worker decides by its own information.
    NoGrace,
    /// The list of workers that timed out is not sent.
    LateForgotten,
    /// A worker that does not participate in a call does not send that.
    DeclineUnsaid,
    /// The notice that a worker has left the session is dropped.
    LeaveUnheard,
    /// The loss of a worker is delivered before its last messages.
    LossFirst,
    /// The leader does not wait for the last worker.
    TableEarly,
    /// The leader creates the generation after its own, instead of the one after the latest of all.
    MaximumIgnored,
    /// A worker that missed a rendezvous does not come back as a newly started one.
    ClaimKept,
    /// A worker that has lost another during the rendezvous does not come back.
    LossGivesUp,
    /// A worker does not retry if another process has its place.
    TakenGivesUp,
    /// A worker of a complete world does not announce the loss of a worker, which then comes back.
    EarlyUnsaid,
    /// A worker that leaves a world for a rendezvous sends the farewell of a worker that has ended.
    LeaveAsEnd,
    /// Messages of the previous world are kept in the next one.
    SessionKept,
    /// The state is taken from the first worker instead of the furthest.
    FurthestIgnored,
    /// A transferred state counts only after all have it.
    TakenUncounted,
    /// Half a step counts as a complete one.
    TornIgnored,
    /// Repeated steps are counted again.
    RewindForgotten,
    /// A world is created with fewer workers than the minimum.
    LeastIgnored,
    /// A world of the present workers is announced as a world of all.
    TableOfAll,
    /// A batch is split over the maximum number of workers instead of the current workers.
    DealtAsBefore,
    /// A step begins although other workers wait to join.
    WaitingIgnored,
    /// A leader that has restarted keeps its world although the others were in a later one.
    SupplantedKept,
    /// Messages of a session with a worker count although the worker was lost.
    LostHeard,
    /// A worker is connected to again, and the coordinator is not notified of its loss.
    LossUntold,
    /// A worker returns a closure that it is running.
    RunningReturned,
    /// An attempt that is repeated has consumed its elements permanently.
    AttemptMoves,
    /// A worker that comes back makes its resources at their initial positions.
    PositionForgotten,
    /// A worker that comes back is assumed to still have its resources.
    ResourceKept,
    /// All workers may create variables.
    VariablesTwice,
    /// A closure that ends after its cancellation ends twice.
    OutcomeTwice,
    /// A closure that has not ended is assumed to have ended.
    FloorHigh,
    /// A worker has more closures than its window allows.
    WindowExceeded,
    /// More closures are queued than allowed.
    QueueUnbounded,
    /// The worker that runs a closure is not notified of its cancellation.
    CancelUnsent,
    /// Servers do not remember the changes that they have made.
    NoLedger,
    /// Work for a session that is over is accepted in the current one.
    AnySession,
    /// A worker runs a second closure at the same time.
    TwoAtOnce,
    /// A session continues after another one has begun.
    SessionLives,
    /// A worker works for a coordinator that was replaced.
    OldJob,
}

impl Planted {
    /// Modifies a frame before it is sent to other workers. `None` if it is dropped.
    pub fn sends(self, mut frame: Frame) -> Option<Frame> {
        match (self, &mut frame.said) {
            (Planted::VerdictUnsaid, Said::Verdict(_)) => return None,
            (Planted::LateForgotten, Said::Standings { late, .. }) => late.clear(),
            _ => {}
        }
        Some(frame)
    }

    /// Modifies a frame that a worker receives. `round` is the current round of the worker, and `own` its
    /// call's digest.
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

    /// Modifies the hello of a connection.
    pub fn meets(self, mut theirs: Hello, members: &Membership) -> Hello {
        if self == Planted::GenerationIgnored && theirs.purpose == Purpose::Link {
            theirs.generation = members.generation();
        }
        theirs
    }

    /// Modifies the note that a leader sends to the others.
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

    /// Whether a connection is accepted in spite of this refusal.
    pub fn admits(self, refusal: &Refusal) -> bool {
        self == Planted::TakenIgnored && refusal.reason == Reason::Taken
    }

    /// Whether the leader completes the world with this number of missing workers.
    pub fn completes(self, pid: Pid, missing: usize) -> bool {
        self == Planted::TableEarly && pid == 0 && missing == 1
    }
}
