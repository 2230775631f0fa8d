//! The side that was connected to.

use super::hearing::preamble;
use super::{Hello, Names, Offer, Purpose, Reason, Refusal, Words};
use ring::hmac;

/// The handshake of the side that was connected to. It checks that the other side belongs to the job.
#[derive(Debug)]
pub struct Host {
    /// The hello that a caller of the same job sends, except for its rank and purpose. A host that answers
    /// calls is the task that its own purpose names as called.
    mine: Hello,
    key: Option<hmac::Key>,
    nonce: [u8; 32],
    names: Names,
    machine: Option<[u8; 32]>,
    /// The caller that has proved the secret but disagrees on what all workers have in common.
    dissenter: Option<Hello>,
    state: State,
}

#[derive(Debug)]
enum State {
    Start,
    Challenged { hello: Hello, said: Vec<u8> },
    Over,
}

/// The next step after words of the other side.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this, and wait for an answer.
    Say(Vec<u8>),
    /// The other side belongs to the job, and may have offered memory to share. The user of the handshake
    /// decides whether to accept it, and answers with [`Host::welcome`] or [`Host::refuse`].
    Applies(Hello, Option<Offer>),
}

impl Host {
    /// Creates the handshake of the worker with this hello. `key` is derived from the job's secret, if it has
    /// one.
    pub fn new(mine: Hello, key: Option<hmac::Key>, nonce: [u8; 32]) -> Self {
        let (names, machine, dissenter) = Default::default();
        Self { mine, key, nonce, names, machine, dissenter, state: State::Start }
    }

    /// Sets the names of workers in refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Sets the digest of this machine, which offers shared memory. The digest is valid for this connection
    /// only.
    pub fn shares(mut self, machine: Option<[u8; 32]>) -> Self {
        self.machine = machine;
        self
    }

    /// Returns the hello of a caller that was refused although it has proved the secret, because it disagrees
    /// on the job or the cluster. If the job has no secret, the connection must still show its user.
    pub fn dissenter(&self) -> Option<&Hello> {
        self.dissenter.as_ref()
    }

    /// Processes words of the other side and returns the next step.
    ///
    /// # Errors
    /// Returns the refusal to send to the other side, or the other side's own.
    pub fn hear(&mut self, words: Words) -> Result<Answer, Refusal> {
        match (std::mem::replace(&mut self.state, State::Over), words) {
            (_, Words::Refusal(refusal)) => Err(refusal),
            (State::Start, words @ Words::Hello(..)) => {
                let said = words.encode();
                let Words::Hello(hello, has_secret, _) = words else { return Err(Refusal::protocol()) };
                // A worker of another job ends the rendezvous, so it proves the secret before it is refused.
                if is_call(&hello) || has_secret != self.key.is_some() {
                    self.compare_jobs(&hello)?;
                }
                if has_secret != self.key.is_some() {
                    return Err(only_one(has_secret));
                }
                let mut challenge = Words::Challenge(self.mine.rank, self.nonce, self.machine, None);
                let said = [said, challenge.encode()].concat();
                if let (Some(key), Words::Challenge(.., mine)) = (&self.key, &mut challenge) {
                    *mine = Some(proof(key, b"host", &said));
                }
                self.state = State::Challenged { hello, said };
                Ok(Answer::Say([preamble(), challenge.encode()].concat()))
            }
            (State::Challenged { hello, said }, Words::Proof(theirs, offer)) => {
                let said = [said, Offer::encode(offer.as_ref())].concat();
                check(self.key.as_ref(), b"caller", &said, theirs)?;
                if let Err(refusal) = self.compare_jobs(&hello).and_then(|()| self.compare(&hello)) {
                    let is_dissent = matches!(refusal.reason, Reason::Job | Reason::Cluster);
                    self.dissenter = is_dissent.then_some(hello);
                    return Err(refusal);
                }
                // Memory is opened only if this side has offered to share it.
                Ok(Answer::Applies(hello, offer.filter(|_| self.machine.is_some())))
            }
            _ => Err(Refusal::protocol()),
        }
    }

    /// Compares the names of the jobs, unless one side calls and the other joins a world.
    /// [`compare`](Self::compare) refuses those for their purposes.
    fn compare_jobs(&self, hello: &Hello) -> Result<(), Refusal> {
        let is_any = is_call(hello) && hello.job.is_empty();
        if is_call(hello) != is_call(&self.mine) || hello.job == self.mine.job || is_any {
            return Ok(());
        }
        let text = format!(
            "another job than {:?} is at this address: does an earlier one still run, or do two use the same port? Tasks of one \
             job have one name for it: DISTRIBUTE_JOB, or else that of their program",
            hello.job
        );
        Err(Refusal::new(Reason::Job, text))
    }

    /// Compares the rest of the hello, after the other side has proved the secret.
    fn compare(&self, hello: &Hello) -> Result<(), Refusal> {
        let mine = &self.mine;
        let (me, other) = (self.names.of(mine.rank), self.names.of(hello.rank));
        let refusal = |reason, text| Err(Refusal::new(reason, text));
        match (&mine.purpose, &hello.purpose) {
            (Purpose::Call { to: me, .. }, Purpose::Call { to, .. }) if me == to => return Ok(()),
            (Purpose::Call { to: me, .. }, Purpose::Call { to, .. }) => {
                return refusal(Reason::Rank, format!("it is {me}, not {to}: check the addresses"));
            }
            (Purpose::Call { to: me, .. }, _) => {
                return refusal(
                    Reason::Purpose,
                    format!("{me} answers calls here, and joins no world: check the addresses"),
                );
            }
            (_, Purpose::Call { to, .. }) => {
                let text = format!(
                    "{me} of a world is at this address, and answers no calls: is there a server of {to}?"
                );
                return refusal(Reason::Purpose, text);
            }
            _ => {}
        }
        if (hello.workers, hello.replicas) != (mine.workers, mine.replicas) {
            let text = format!(
                "{other} knows {} workers with {} replicas each, and {me} knows {} with {}: give all the same cluster and \
                 devices",
                hello.workers, hello.replicas, mine.workers, mine.replicas
            );
            return Err(Refusal::new(Reason::Cluster, text));
        }
        if hello.digest != mine.digest {
            let text = format!(
                "{other} and {me} are not of the same cluster or program: start all from the same build, with the same \
                 cluster and the same least number of workers (DISTRIBUTE_MIN_WORKERS)"
            );
            return Err(Refusal::new(Reason::Cluster, text));
        }
        if hello.rank >= mine.workers || hello.rank == mine.rank {
            let text = format!(
                "{other} has connected to {me}, of {} workers: each needs a number of its own, from 0",
                mine.workers
            );
            return Err(Refusal::new(Reason::Rank, text));
        }
        Ok(())
    }

    /// Returns the bytes that accept the other side.
    pub fn welcome() -> Vec<u8> {
        Words::Welcome.encode()
    }

    /// Returns the bytes that refuse the other side. The preamble comes first if nothing else was sent
    /// before.
    pub fn refuse(refusal: Refusal, is_first: bool) -> Vec<u8> {
        let words = Words::Refusal(refusal).encode();
        if is_first { [preamble(), words].concat() } else { words }
    }
}

fn is_call(hello: &Hello) -> bool {
    matches!(hello.purpose, Purpose::Call { .. })
}

pub(super) fn proof(key: &hmac::Key, side: &[u8], said: &[u8]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    context.update(side);
    context.update(said);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

/// Compares a proof in constant time.
pub(super) fn check(
    key: Option<&hmac::Key>,
    side: &[u8],
    said: &[u8],
    theirs: Option<[u8; 32]>,
) -> Result<(), Refusal> {
    match (key, theirs) {
        (None, None) => Ok(()),
        (Some(key), Some(theirs)) => hmac::verify(key, &[side, said].concat(), &theirs).map_err(|_| {
            Refusal::new(
                Reason::Secret,
                "the secrets of the two tasks differ: give all tasks of the job the same DISTRIBUTE_SECRET, and see whether \
                 another job is at this address",
            )
        }),
        (None, Some(_)) => Err(only_one(true)),
        (Some(_), None) => Err(only_one(false)),
    }
}

fn only_one(theirs: bool) -> Refusal {
    let has = if theirs { "that has connected" } else { "that was connected to" };
    let text = format!(
        "the task {has} has a secret of the job, and the other one has none: give all tasks the same DISTRIBUTE_SECRET"
    );
    Refusal::new(Reason::Secret, text)
}
