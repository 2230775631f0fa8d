//! Programs that all workers run, and the deviation of one replica or worker.

use distribute_testing::SplitMix;

/// A program that every worker runs, and its fault.
#[derive(Clone, Debug)]
pub struct Program {
    pub workers: usize,
    pub replicas: usize,
    pub acts: Vec<Act>,
    pub fault: Fault,
}

/// An operation that a worker performs once for all its replicas.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    Run(Vec<Call>),
    /// A `reduce` of the given number of elements.
    Reduce(usize),
    /// A `gather` of the given number of rows plus the worker's id.
    Gather(usize),
    /// A read of the variable `seen`, which is ON_READ.
    Read,
    /// A step of the optimizer on the next batch.
    Step,
    /// A save of a checkpoint.
    Save,
}

/// A call of a replica inside `run`.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// An `all_reduce` of the given number of elements.
    Reduce(usize),
    /// An `all_gather` of the given number of rows plus the replica's id.
    Gather(usize),
    /// A `merge_call` that calls `reduce_to` and `update`.
    Merge,
    /// A step of the optimizer, possibly on a model with a collective in forward.
    Minimize { collective: bool },
    /// A write of all replicas to an ON_WRITE variable.
    Write,
    /// A write to this replica's copy of the ON_READ variable, which does not wait for other replicas.
    Count,
}

/// The position and kind of the deviation.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The index of the act with the fault.
    pub act: usize,
    /// The global id of the faulty replica. For a fault of a worker, this is the id of one of its replicas.
    pub replica: usize,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub enum Kind {
    /// A fault of a replica at the given call of the act, which is a run.
    Replica(usize, Wrong),
    Worker(Mistake),
}

/// The kind of a replica's fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Wrong {
    Returns,
    Fails,
    Panics,
    Other(Call),
    Additional(Call),
    Missing,
    Shape,
    DType,
    /// A backward pass that fails or panics.
    Backward {
        panics: bool,
    },
    /// A call after the others have timed out.
    Late,
}

/// The kind of a worker's fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Mistake {
    Ends,
    Fails,
    Panics,
    Other(Act),
    /// A value of one replica with a wrong shape.
    Shape,
    DType,
    /// A call in which the worker cannot contribute, for example because its data cannot be read.
    Unable,
    /// A call after the others have timed out.
    Late,
}

/// A number of elements that is too large to send to every worker in one round.
const LARGE: usize = 9_001;

impl Program {
    /// Returns the program of a seed. The same seed always results in the same program.
    pub fn random(seed: u64) -> Self {
        let random = &mut SplitMix(seed);
        let (workers, replicas) = loop {
            let world = (random.of(&[1, 2, 2, 2, 3, 3, 4, 5]), 1 + random.below(3));
            if world.0 * world.1 > 1 {
                break world;
            }
        };
        loop {
            let acts: Vec<Act> = (0..1 + random.below(5)).map(|_| Act::random(random)).collect();
            // With one worker, no one may wait in any of these calls, so that no fault is possible.
            if let Some(fault) = Fault::random(random, workers, replicas, &acts) {
                return Self { workers, replicas, acts, fault };
            }
        }
    }

    /// Returns the worker with the fault.
    pub fn culprit(&self) -> usize {
        self.fault.replica / self.replicas
    }

    /// Returns the act with the fault.
    pub fn planted(&self) -> &Act {
        &self.acts[self.fault.act]
    }

    /// Returns the number of batches that the program takes before the fault.
    pub fn batches(&self) -> usize {
        self.acts[..self.fault.act].iter().filter(|act| **act == Act::Step).count()
    }
}

impl Act {
    fn random(random: &mut SplitMix) -> Self {
        match random.below(10) {
            0..4 => Act::Run((0..1 + random.below(5)).map(|_| Call::random(random)).collect()),
            4 => Act::Reduce(random.of(&[1, 2, 3, LARGE])),
            5 => Act::Gather(random.of(&[1, 2, LARGE])),
            6 => Act::Read,
            7 | 8 => Act::Step,
            _ => Act::Save,
        }
    }

    /// Returns whether workers could confuse the two acts.
    fn is_like(&self, other: &Act) -> bool {
        match (self, other) {
            // For the other workers, both are the next step, whatever calls the replicas make.
            (Act::Run(_), Act::Run(_)) | (Act::Gather(_), Act::Gather(_)) => true,
            // A checkpoint begins with a read of the same variable.
            (Act::Read, Act::Save) | (Act::Save, Act::Read) => true,
            _ => self == other,
        }
    }
}

impl Call {
    fn random(random: &mut SplitMix) -> Self {
        match random.below(9) {
            0 | 1 => Call::Reduce(random.of(&[1, 2, 3, LARGE])),
            2 => Call::Gather(random.of(&[1, 2, LARGE])),
            3 | 4 => Call::Merge,
            5 | 6 => Call::Minimize { collective: random.below(2) == 0 },
            7 => Call::Write,
            _ => Call::Count,
        }
    }

    /// Returns whether the replicas of other workers wait for this call.
    pub fn is_rendezvous(&self) -> bool {
        *self != Call::Count
    }

    /// Returns whether the replicas of one worker meet in this call before their worker calls the others.
    pub fn is_local_first(&self) -> bool {
        matches!(self, Call::Merge | Call::Write)
    }

    /// Returns whether replicas could confuse the two calls.
    fn is_like(&self, other: &Call) -> bool {
        matches!((self, other), (Call::Gather(_), Call::Gather(_))) || self == other
    }

    fn unlike(&self, random: &mut SplitMix) -> Self {
        loop {
            let other = Call::random(random);
            if other.is_rendezvous() && !other.is_like(self) {
                return other;
            }
        }
    }
}

impl Fault {
    fn random(random: &mut SplitMix, workers: usize, replicas: usize, acts: &[Act]) -> Option<Self> {
        (0..100).find_map(|_| {
            let act = random.below(acts.len());
            let kind = match &acts[act] {
                Act::Run(calls) if random.below(6) > 0 => Kind::replica(random, calls, workers),
                act => Kind::worker(random, act, workers),
            };
            kind.map(|kind| Self { act, replica: random.below(workers * replicas), kind })
        })
    }

    /// Returns whether the other workers wait until their deadline, which should then be short.
    pub fn is_timeout(&self) -> bool {
        matches!(self.kind, Kind::Replica(_, Wrong::Late) | Kind::Worker(Mistake::Late))
    }

    /// Returns whether the faulty worker exits the program.
    pub fn stops_its_worker(&self) -> bool {
        matches!(self.kind, Kind::Worker(Mistake::Ends | Mistake::Fails | Mistake::Panics))
    }
}

impl Kind {
    fn replica(random: &mut SplitMix, calls: &[Call], workers: usize) -> Option<Self> {
        let at = random.below(calls.len());
        let call = &calls[at];
        if !call.is_rendezvous() {
            return None;
        }
        let wrong = match random.below(11) {
            0 => Wrong::Returns,
            1 => Wrong::Fails,
            2 => Wrong::Panics,
            3 => Wrong::Other(call.unlike(random)),
            4 => Wrong::Additional(call.unlike(random)),
            5 => Wrong::Missing,
            6 => Wrong::Shape,
            7 => Wrong::DType,
            8 => Wrong::Backward { panics: false },
            9 => Wrong::Backward { panics: true },
            _ => Wrong::Late,
        };
        let fits = match wrong {
            // With one worker, calls in a merge function have no other members, so they cannot differ.
            Wrong::Shape | Wrong::DType => {
                matches!(call, Call::Reduce(_) | Call::Gather(_)) || *call == Call::Merge && workers > 1
            }
            Wrong::Backward { .. } => matches!(call, Call::Minimize { .. }),
            _ => true,
        };
        // Fewer of these, because each waits for a deadline.
        let fits = fits && (wrong != Wrong::Late || random.below(2) == 0);
        fits.then_some(Kind::Replica(at, wrong))
    }

    fn worker(random: &mut SplitMix, act: &Act, workers: usize) -> Option<Self> {
        let mistake = match random.below(8) {
            0 => Mistake::Ends,
            1 => Mistake::Fails,
            2 => Mistake::Panics,
            3 => loop {
                let other = Act::random(random);
                if !other.is_like(act) {
                    break Mistake::Other(other);
                }
            },
            4 => Mistake::Shape,
            5 => Mistake::DType,
            6 => Mistake::Unable,
            _ => Mistake::Late,
        };
        let fits = match mistake {
            Mistake::Shape | Mistake::DType => matches!(act, Act::Reduce(_) | Act::Gather(_)),
            Mistake::Unable => !matches!(act, Act::Run(_) | Act::Read),
            _ => true,
        };
        let fits = fits && (mistake != Mistake::Late || random.below(3) == 0);
        // With one worker, no worker waits for another.
        (fits && workers > 1).then_some(Kind::Worker(mistake))
    }
}
