//! The handshake of the side that was connected to.

use super::decoder::preamble;
use super::{Hello, Names, Offer, Purpose, Reason, Refusal, Words};
use ring::hmac;

/// The handshake of the side that was connected to, which checks that the other side belongs to the job.
#[derive(Debug)]
pub struct Host {
    /// The hello that a caller of the same job sends, except for rank and purpose, which are this host's own. If the
    /// host accepts calls, the purpose is a call to its own task.
    own: Hello,
    key: Option<hmac::Key>,
    nonce: [u8; 32],
    names: Names,
    machine: Option<[u8; 32]>,
    /// The hello of the caller, if it has passed the check of the secret but disagrees on the job or the cluster.
    refused_member: Option<Hello>,
    state: State,
}

#[derive(Debug)]
enum State {
    Start,
    Challenged { hello: Hello, transcript: Vec<u8> },
    Over,
}

/// The next step after a message from the other side has been processed.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send these bytes, and wait for a response.
    Send(Vec<u8>),
    /// The other side, with this hello, belongs to the job. The offer is memory that the other side shares, if both
    /// sides have offered to share memory. The user of the handshake decides whether to accept the other side, and
    /// responds with [`Host::welcome`] or [`Host::refuse`].
    Applies(Hello, Option<Offer>),
}

impl Host {
    /// Creates the handshake with one caller. `own` is the host's own hello, with which that of the caller is compared.
    /// `key` is derived from the job's secret, if it has one. `nonce` must be random.
    pub fn new(own: Hello, key: Option<hmac::Key>, nonce: [u8; 32]) -> Self {
        let (names, machine, refused_member) = Default::default();
        Self { own, key, nonce, names, machine, refused_member, state: State::Start }
    }

    /// Sets the names of workers for the texts of refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Sets a digest of this machine, which offers shared memory to the caller. With `None` shared memory is not
    /// offered. The digest is valid only for this connection.
    pub fn machine(mut self, machine: Option<[u8; 32]>) -> Self {
        self.machine = machine;
        self
    }

    /// Returns the hello of a caller that has passed the check of the secret, but was rejected because it disagrees on
    /// the job or the cluster; `None` for any other caller. In a job without a secret, passing the check proves
    /// nothing, so the caller's certificate or the user of its process must still be verified.
    pub fn refused_member(&self) -> Option<&Hello> {
        self.refused_member.as_ref()
    }

    /// Processes a message of the other side and returns the next step.
    ///
    /// # Errors
    /// Returns the refusal to send to the other side, or the other side's own refusal.
    pub fn receive(&mut self, words: Words) -> Result<Answer, Refusal> {
        match (std::mem::replace(&mut self.state, State::Over), words) {
            (_, Words::Refusal(refusal)) => Err(refusal),
            (State::Start, words @ Words::Hello(..)) => {
                let transcript = words.encode();
                let Words::Hello(hello, has_secret, _) = words else { return Err(Refusal::protocol()) };
                // A worker of a different job ends the rendezvous, so it proves the secret before it is refused.
                if is_call(&hello) || has_secret != self.key.is_some() {
                    self.compare_jobs(&hello)?;
                }
                if has_secret != self.key.is_some() {
                    return Err(only_one(has_secret));
                }
                let mut challenge = Words::Challenge(self.own.rank, self.nonce, self.machine, None);
                let transcript = [transcript, challenge.encode()].concat();
                if let (Some(key), Words::Challenge(.., own)) = (&self.key, &mut challenge) {
                    *own = Some(proof(key, b"host", &transcript));
                }
                self.state = State::Challenged { hello, transcript };
                Ok(Answer::Send([preamble(), challenge.encode()].concat()))
            }
            (State::Challenged { hello, transcript }, Words::Proof(theirs, offer)) => {
                let transcript = [transcript, Offer::encode(offer.as_ref())].concat();
                check(self.key.as_ref(), b"caller", &transcript, theirs)?;
                if let Err(refusal) = self.compare_jobs(&hello).and_then(|()| self.compare(&hello)) {
                    let disagrees = matches!(refusal.reason, Reason::Job | Reason::Cluster);
                    self.refused_member = disagrees.then_some(hello);
                    return Err(refusal);
                }
                // Memory is opened only if this side has offered to share it.
                Ok(Answer::Applies(hello, offer.filter(|_| self.machine.is_some())))
            }
            _ => Err(Refusal::protocol()),
        }
    }

    /// Checks that both sides have the same name of the job. A call with an empty name may be to any job. If one side
    /// calls and the other joins a world, the names are not compared, because [`compare`](Self::compare) rejects the
    /// connection for its purpose.
    ///
    /// # Errors
    /// Returns a refusal if the names differ.
    fn compare_jobs(&self, hello: &Hello) -> Result<(), Refusal> {
        let is_any = is_call(hello) && hello.job.is_empty();
        if is_call(hello) != is_call(&self.own) || hello.job == self.own.job || is_any {
            return Ok(());
        }
        let text = format!(
            "another job than {:?} is at this address: does an earlier one still run, or do two use the \
             same port? All tasks of a job use the same name of the job: DISTRIBUTE_JOB or, by default, the \
             name of their program",
            hello.job
        );
        Err(Refusal::new(Reason::Job, text))
    }

    /// Checks that the rest of the caller's hello matches this host's, after the caller has proved that it knows the
    /// secret.
    ///
    /// # Errors
    /// Returns the refusal to send if the hellos do not match.
    fn compare(&self, hello: &Hello) -> Result<(), Refusal> {
        let own = &self.own;
        let (me, other) = (self.names.task(own.rank), self.names.task(hello.rank));
        let refusal = |reason, text| Err(Refusal::new(reason, text));
        match (&own.purpose, &hello.purpose) {
            (Purpose::Call { to: me, .. }, Purpose::Call { to, .. }) if me == to => return Ok(()),
            (Purpose::Call { to: me, .. }, Purpose::Call { to, .. }) => {
                return refusal(Reason::Rank, format!("it is {me}, not {to}: check the addresses"));
            }
            (Purpose::Call { to: me, .. }, _) => {
                return refusal(
                    Reason::Purpose,
                    format!("{me} only accepts calls here, and joins no world: check the addresses"),
                );
            }
            (_, Purpose::Call { to, .. }) => {
                let text = format!(
                    "{me} of a world is at this address, and accepts no calls: is there a server of {to}?"
                );
                return refusal(Reason::Purpose, text);
            }
            _ => {}
        }
        if (hello.workers, hello.replicas) != (own.workers, own.replicas) {
            let text = format!(
                "{other} knows {} workers and {} replicas, and {me} knows {} and {} (replicas of each worker or, with \
                 logical_replicas, of all): give all the same cluster, devices and logical_replicas",
                hello.workers, hello.replicas, own.workers, own.replicas
            );
            return Err(Refusal::new(Reason::Cluster, text));
        }
        if hello.digest != own.digest {
            let text = format!(
                "{other} and {me} are not of the same cluster or program: start all from the same build, with the same \
                 cluster, the same least number of workers (DISTRIBUTE_MIN_WORKERS), of spares (DISTRIBUTE_SPARES), and the \
                 same checksums (DISTRIBUTE_CHECKSUMS)"
            );
            return Err(Refusal::new(Reason::Cluster, text));
        }
        if hello.rank >= own.workers || hello.rank == own.rank {
            let text = format!(
                "{other} has connected to {me}, of {} workers: each needs a unique number, from 0",
                own.workers
            );
            return Err(Refusal::new(Reason::Rank, text));
        }
        Ok(())
    }

    /// Returns the bytes that accept the other side.
    pub fn welcome() -> Vec<u8> {
        Words::Welcome.encode()
    }

    /// Returns the bytes that reject the other side. If `is_first` is `true`, because nothing has been sent before,
    /// they begin with the preamble.
    pub fn refuse(refusal: Refusal, is_first: bool) -> Vec<u8> {
        let words = Words::Refusal(refusal).encode();
        if is_first { [preamble(), words].concat() } else { words }
    }
}

fn is_call(hello: &Hello) -> bool {
    matches!(hello.purpose, Purpose::Call { .. })
}

pub(super) fn proof(key: &hmac::Key, side: &[u8], transcript: &[u8]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    context.update(side);
    context.update(transcript);
    let mut bytes = [0; 32];
    bytes.copy_from_slice(context.sign().as_ref());
    bytes
}

/// Checks the other side's proof of the secret, in constant time. If neither side has a secret, there is no proof to
/// check.
///
/// # Errors
/// Returns the refusal to send if the secrets differ, or if only one side has a secret.
pub(super) fn check(
    key: Option<&hmac::Key>,
    side: &[u8],
    transcript: &[u8],
    theirs: Option<[u8; 32]>,
) -> Result<(), Refusal> {
    match (key, theirs) {
        (None, None) => Ok(()),
        (Some(key), Some(theirs)) => hmac::verify(key, &[side, transcript].concat(), &theirs).map_err(|_| {
            Refusal::new(
                Reason::Secret,
                "the secrets of the two tasks differ: give all tasks of the job the same \
                 DISTRIBUTE_SECRET, and check that no other job uses this address",
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
