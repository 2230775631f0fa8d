//! The handshake of the side that has connected.

use super::decoder::preamble;
use super::host::{check, proof};
use super::{Hello, Names, Offer, Purpose, Reason, Refusal, Words};
use ring::hmac;

/// The handshake of the side that has connected, which identifies itself and checks the other side.
#[derive(Debug)]
pub struct Caller {
    hello: Words,
    to: usize,
    key: Option<hmac::Key>,
    names: Names,
    offer: Option<Offer>,
    proved: bool,
}

/// The next step after a message from the other side has been processed.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send these bytes, and wait for a response.
    Send(Vec<u8>),
    /// The other side has accepted the connection.
    Welcome,
}

impl Caller {
    /// Creates the handshake with worker `to`. `hello` identifies this side, and `key` is derived from the job's
    /// secret, if it has one. `nonce` must be random.
    pub fn new(hello: Hello, to: usize, key: Option<hmac::Key>, nonce: [u8; 32]) -> Self {
        Self {
            hello: Words::Hello(hello, key.is_some(), nonce),
            to,
            key,
            names: Names::default(),
            offer: None,
            proved: false,
        }
    }

    /// Sets the names of workers for the texts of refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Returns the first bytes to send.
    pub fn first(&self) -> Vec<u8> {
        [preamble(), self.hello.encode()].concat()
    }

    /// Sets the memory to offer to the other side. The challenge must have shown that the other side is on this
    /// machine, and must not have been passed to [`receive`](Self::receive) yet.
    pub fn offer(&mut self, offer: Offer) {
        self.offer = Some(offer);
    }

    /// Returns whether this side wants to take part in a world.
    fn joins(&self) -> bool {
        let purpose = match &self.hello {
            Words::Hello(hello, ..) => &hello.purpose,
            _ => return false,
        };
        matches!(purpose, Purpose::Join { .. } | Purpose::Spare { .. })
    }

    /// Processes a message of the other side and returns the next step.
    ///
    /// # Errors
    /// Returns the other side's refusal, or the refusal that must be sent to it.
    pub fn receive(&mut self, words: Words) -> Result<Answer, Refusal> {
        match words {
            Words::Challenge(rank, nonce, machine, their_proof) if !self.proved => {
                if rank != self.to {
                    let (is, to) = (self.names.task(rank), self.names.task(self.to));
                    let text = format!("it is {is}, not {to}: check the addresses");
                    return Err(Refusal::new(Reason::Rank, text));
                }
                let challenge = Words::Challenge(rank, nonce, machine, None);
                let transcript = [self.hello.encode(), challenge.encode()].concat();
                check(self.key.as_ref(), b"host", &transcript, their_proof)?;
                self.proved = true;
                let transcript = [transcript, Offer::encode(self.offer.as_ref())].concat();
                let proof = self.key.as_ref().map(|key| proof(key, b"caller", &transcript));
                Ok(Answer::Send(Words::Proof(proof, self.offer).encode()))
            }
            Words::Welcome if self.proved => Ok(Answer::Welcome),
            // Only a member of the job knows its worlds, and proves that it is one before it speaks of them.
            Words::Refusal(refusal) if !self.proved && self.joins() && refusal.reason.is_of_a_world() => {
                Err(Refusal::protocol())
            }
            Words::Refusal(refusal) => Err(refusal),
            _ => Err(Refusal::protocol()),
        }
    }
}
