//! Planted bugs, which the simulation must detect. Each bug is in the simulation's own code that uses the state
//! machines, so the code of real processes contains none of them.

use crate::network::Pid;
use distribute_collective::group::{Content, Frame};
use distribute_net::JoinError;
use distribute_net::handshake::{Hello, Purpose, Reason, Refusal};
use distribute_net::rendezvous::membership::Membership;
use distribute_net::rendezvous::note::Note;

/// A bug that can be planted in a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Frames of a session that is over are accepted in the current session.
    SessionFence,
    /// A frame of a past round is accepted in the current round.
    RoundFence,
    /// The deadline of a call never passes.
    NoDeadline,
    /// The worker that makes the decision does not send it.
    VerdictUnsaid,
    /// Frames of rounds that have not begun are dropped.
    EarlyDropped,
    /// Every call is considered equal to the worker's own.
    DigestIgnored,
    /// The generation of a link is not compared, so links between different worlds are accepted.
    GenerationIgnored,
    /// A second process of the same worker is accepted.
    TakenIgnored,
    /// The session is not notified when a worker is lost.
    LossIgnored,
    /// There is no grace period after the deadline. Each worker decides based only on its own information.
    NoGrace,
    /// The list of workers that timed out is not sent.
    LateForgotten,
    /// A worker that does not participate in a call does not notify the others.
    DeclineUnsaid,
    /// The notification that a worker has left the session is dropped.
    LeaveUnheard,
    /// The loss of a worker is delivered before its last messages.
    LossFirst,
    /// The leader completes the world without waiting for the last worker.
    TableEarly,
    /// The leader creates the generation after its own, instead of the one after the latest generation of all workers.
    MaximumIgnored,
    /// A worker that missed a rendezvous keeps its claim, instead of joining like a newly started worker.
    ClaimKept,
    /// A worker that lost another during the rendezvous does not join again.
    LossGivesUp,
    /// A worker does not retry if another process has taken its place.
    TakenGivesUp,
    /// A worker of a complete world does not notify a worker that joins again that its previous process was lost.
    EarlyUnsaid,
    /// A worker that leaves a world for a rendezvous sends the farewell of a worker that has finished.
    LeaveAsEnd,
    /// Messages of the previous world are kept in the next one.
    SessionKept,
    /// Every worker reports the same number of updates, so the state is not received from the most advanced worker.
    FurthestIgnored,
    /// A transferred state is considered valid only after all workers have received it.
    TakenUncounted,
    /// A partially completed step is considered complete.
    TornIgnored,
    /// Repeated steps are counted twice.
    RewindForgotten,
    /// A world is created with fewer workers than the minimum.
    LeastIgnored,
    /// A world is created with more workers than the maximum, because all that have joined are in it.
    MostIgnored,
    /// The group re-forms because a spare is waiting.
    SparesCounted,
    /// A worker whose place a spare takes claims its place in the next rendezvous.
    ReplacedKept,
    /// The others do not follow a proposal that a spare takes the place of a worker.
    ProposalUnheard,
    /// A world that consists only of the present workers is announced as one with all workers.
    TableOfAll,
    /// A batch is split over the maximum number of workers, instead of the current number.
    DealtAsBefore,
    /// A step begins although other workers are waiting to join.
    WaitingIgnored,
    /// A restarted leader keeps its world although the others have been in a later one.
    SupplantedKept,
    /// Messages of a worker's session are accepted although the worker was lost.
    LostHeard,
    /// The coordinator connects to a worker again without recording that it was lost.
    LossUntold,
    /// A worker returns a closure that it is running.
    RunningReturned,
    /// Elements taken by an attempt that is repeated are lost.
    AttemptMoves,
    /// A worker that reconnects creates its resources at their initial positions.
    PositionForgotten,
    /// A worker that reconnects is assumed to still have its resources.
    ResourceKept,
    /// All workers are allowed to create variables.
    VariablesTwice,
    /// A closure that ends after its cancellation has two outcomes.
    OutcomeTwice,
    /// A closure that has not ended is assumed to have ended.
    FloorHigh,
    /// A worker gets more closures than its window allows.
    WindowExceeded,
    /// More closures are queued than the limit allows.
    QueueUnbounded,
    /// The worker that runs a closure is not notified of its cancellation.
    CancelUnsent,
    /// Servers do not record the changes that they have made.
    NoLedger,
    /// Work for a session that is over is accepted in the current one.
    AnySession,
    /// A worker runs two closures at the same time.
    TwoAtOnce,
    /// A session continues after another session has begun.
    SessionLives,
    /// A worker works for a coordinator that has been replaced.
    OldJob,
    /// Cached rows do not age: updates and runs are not reported to the clock of the cache.
    AgeForgotten,
    /// Writes outside of runs are not reported to the cache of rows.
    WriteUnseen,
    /// Rows are prefetched before all workers have made the change.
    PrefetchEarly,
    /// Prefetched rows are kept when the table is written.
    PrefetchKept,
    /// The copies that a worker has of hot rows do not get the changes of a step.
    HotUnpatched,
    /// Hot rows are read before the change after which they are sent.
    HotEarly,
    /// Hot rows are not read after a change of their server.
    HotUnread,
    /// Copies of hot rows are kept when the table is written.
    HotKept,
}

impl Planted {
    /// Modifies a frame before it is sent to other workers. Returns `None` if the frame is dropped.
    pub fn sends(self, mut frame: Frame) -> Option<Frame> {
        match (self, &mut frame.content) {
            (Planted::VerdictUnsaid, Content::Verdict(_)) => return None,
            (Planted::LateForgotten, Content::Statuses { late, .. }) => late.clear(),
            _ => {}
        }
        Some(frame)
    }

    /// Modifies a frame that a worker receives. `round` is the worker's current round, and `own` is the digest of its
    /// call. Returns `None` if the frame is dropped.
    pub fn takes(self, mut frame: Frame, round: u64, own: Option<u64>) -> Option<Frame> {
        match (self, &mut frame.content) {
            (Planted::RoundFence, _) if frame.round < round => frame.round = round,
            (Planted::EarlyDropped, _) if frame.round > round => return None,
            (Planted::LeaveUnheard, Content::Left { .. }) => return None,
            (Planted::DigestIgnored, Content::Call { digest, .. }) => *digest = own.unwrap_or(*digest),
            _ => {}
        }
        Some(frame)
    }

    /// Modifies the hello that arrives over a connection. `members` are the members of the world that the receiver
    /// joins.
    pub fn meets(self, mut theirs: Hello, members: &Membership) -> Hello {
        if self == Planted::GenerationIgnored && theirs.purpose == Purpose::Link {
            theirs.generation = members.generation();
        }
        theirs
    }

    /// Modifies the note about a complete world that the leader sends to the other workers. `members` are the members
    /// of this world.
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

    /// Returns `true` if a worker that was rejected for this reason gives up.
    pub fn gives_up(self, refusal: &Refusal) -> bool {
        self == Planted::TakenGivesUp && refusal.reason == Reason::Taken
    }

    /// Returns `true` if a worker that could not join because of `error` gives up.
    pub fn ends(self, error: &JoinError) -> bool {
        match error {
            JoinError::Lost { .. } => self == Planted::LossGivesUp,
            JoinError::Refused { .. } => self == Planted::ClaimKept,
            _ => false,
        }
    }

    /// Returns `true` if a connection is accepted although it should be rejected for this reason.
    pub fn admits(self, refusal: &Refusal) -> bool {
        self == Planted::TakenIgnored && refusal.reason == Reason::Taken
    }

    /// Returns `true` if the worker with the index `pid` is the leader and completes its world although `missing`
    /// workers are missing. This is only the case if one is missing.
    pub fn completes(self, pid: Pid, missing: usize) -> bool {
        self == Planted::TableEarly && pid == 0 && missing == 1
    }
}
