//! The side that has connected.

use super::hearing::preamble;
use super::host::{check, proof};
use super::{Hello, Names, Offer, Reason, Refusal, Words};
use ring::hmac;

/// The side that has connected: says who it is, and makes sure of whom it has reached.
#[derive(Debug)]
pub struct Caller {
    hello: Words,
    to: usize,
    key: Option<hmac::Key>,
    names: Names,
    offer: Option<Offer>,
    proved: bool,
}

/// What follows from what the other side has said.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send this, and listen on.
    Say(Vec<u8>),
    /// The connection is one of the job's.
    Welcome,
}

impl Caller {
    /// Says hello to worker `to`. The key is that of the job's secret, if it has one.
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

    /// What the workers are called in refusals.
    pub fn named(mut self, names: Names) -> Self {
        self.names = names;
        self
    }

    /// The first bytes to send.
    pub fn first(&self) -> Vec<u8> {
        [preamble(), self.hello.encode()].concat()
    }

    /// Memory to offer the other side, which has said in its challenge that it is on this machine.
    pub fn offer(&mut self, offer: Offer) {
        self.offer = Some(offer);
    }

    /// What follows from the words of the other side.
    ///
    /// # Errors
    /// Its refusal, or that of this side.
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
