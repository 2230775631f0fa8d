//! The side that has connected.

use super::hearing::preamble;
use super::host::{check, proof};
use super::{Hello, Names, Offer, Reason, Refusal, Words};
use ring::hmac;

/// The handshake of the side that has connected. It identifies itself and checks the other side.
#[derive(Debug)]
pub struct Caller {
    hello: Words,
    to: usize,
    key: Option<hmac::Key>,
    names: Names,
    offer: Option<Offer>,
    proved: bool,
}

/// The next step after words of the other side.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this, and wait for an answer.
    Say(Vec<u8>),
    /// The other side has accepted the connection.
    Welcome,
}

impl Caller {
    /// Creates the handshake with worker `to`. `key` is derived from the job's secret, if it has one.
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

    /// Sets the names of workers in refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// Returns the first bytes to send.
    pub fn first(&self) -> Vec<u8> {
        [preamble(), self.hello.encode()].concat()
    }

    /// Sets the memory to offer the other side, whose challenge has shown that it is on this machine.
    pub fn offer(&mut self, offer: Offer) {
        self.offer = Some(offer);
    }

    /// Processes words of the other side and returns the next step.
    ///
    /// # Errors
    /// Returns the other side's refusal, or the one to send to it.
    pub fn hear(&mut self, words: Words) -> Result<Answer, Refusal> {
        match words {
            Words::Challenge(rank, nonce, machine, their_proof) if !self.proved => {
                if rank != self.to {
                    let (is, to) = (self.names.of(rank), self.names.of(self.to));
                    let text = format!("it is {is}, not {to}: check the addresses");
                    return Err(Refusal::new(Reason::Rank, text));
                }
                let challenge = Words::Challenge(rank, nonce, machine, None);
                let said = [self.hello.encode(), challenge.encode()].concat();
                check(self.key.as_ref(), b"host", &said, their_proof)?;
                self.proved = true;
                let said = [said, Offer::encode(self.offer.as_ref())].concat();
                let proof = self.key.as_ref().map(|key| proof(key, b"caller", &said));
                Ok(Answer::Say(Words::Proof(proof, self.offer).encode()))
            }
            Words::Welcome if self.proved => Ok(Answer::Welcome),
            Words::Refusal(refusal) => Err(refusal),
            _ => Err(Refusal::protocol()),
        }
    }
}
