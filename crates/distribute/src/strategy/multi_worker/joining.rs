//! How the workers of a cluster meet, at first and again.

use crate::{Error, Result};
use distribute_cluster::deadline::DEFAULT_TIMEOUT;
use distribute_cluster::{Deadline, Stopwatch, Task, World};
use distribute_collective::group::Group;
use distribute_log::told;
use distribute_net::handshake::Reason;
use distribute_net::{Identity, JoinError, Rendezvous, SharedMemory};
use std::time::Duration;

/// What is known of the cluster, and how this process joins it.
#[derive(Clone, Debug)]
pub(super) struct Joining {
    pub world: World,
    pub task: Task,
    pub addresses: Vec<String>,
    pub tasks: Vec<Task>,
    pub identity: Identity,
    pub allow_plain_text: bool,
    pub listen: Option<String>,
    pub shared_memory: SharedMemory,
    pub timeout: Option<Duration>,
}

impl Joining {
    /// Waits until all workers have joined, and says which one this is.
    ///
    /// # Errors
    /// [`Error::Join`].
    pub fn join(&self) -> Result<Group> {
        let started = Stopwatch::start();
        let deadline = Deadline::after(self.timeout.unwrap_or(DEFAULT_TIMEOUT));
        let group = loop {
            match Group::join(self.world, self.rendezvous().timeout(deadline.remaining())) {
                Ok(group) => break group,
                // It may be started again.
                Err(JoinError::Lost { .. }) if !deadline.has_passed() => {}
                Err(error) => return Err(Error::from(error)),
            }
        };
        let what = match group.generation() {
            1 => "all have joined".to_owned(),
            generation => format!("takes a place in a training that goes on, as generation {generation},"),
        };
        self.announce(&what, started.elapsed());
        Ok(group)
    }

    /// Waits, at most for `patience`, until all workers have met again: those that have lost one, and who takes its place.
    ///
    /// # Errors
    /// [`Error::Join`].
    pub fn rejoin(&self, group: &Group, patience: Duration) -> Result<()> {
        let (started, deadline) = (Stopwatch::start(), Deadline::after(patience));
        let mut generation = group.generation();
        loop {
            let rendezvous = self.rendezvous().generation(generation).timeout(deadline.remaining());
            match group.rejoin(rendezvous) {
                Ok(()) => break,
                // Another was lost while they met.
                Err(JoinError::Lost { .. }) if !deadline.has_passed() => {}
                // The others have met without this one. It comes as one of whom they know nothing.
                Err(JoinError::Refused { refusal, .. })
                    if refusal.reason == Reason::Generation && generation > 0 =>
                {
                    generation = 0;
                }
                Err(error) => return Err(Error::from(error)),
            }
        }
        self.announce(
            &format!("all have met again, as generation {},", group.generation()),
            started.elapsed(),
        );
        Ok(())
    }

    fn rendezvous(&self) -> Rendezvous {
        let mut rendezvous = Rendezvous::new(self.world, self.addresses.clone())
            .tasks(self.tasks.clone())
            .agree_on(env!("CARGO_PKG_VERSION").as_bytes())
            .identity(self.identity.clone())
            .shared_memory(self.shared_memory)
            .on_progress(|progress| told(|| tracing::info!("{progress}")));
        if self.allow_plain_text {
            rendezvous = rendezvous.allow_plain_text_on_the_network();
        }
        if let Some(address) = &self.listen {
            rendezvous = rendezvous.listen(address.clone());
        }
        rendezvous
    }

    fn announce(&self, what: &str, waited: Duration) {
        let (world, task, seconds) = (self.world, &self.task, waited.as_secs_f64());
        let all = world.num_replicas_in_sync();
        told(|| {
            tracing::info!("{world}: {all} replicas in sync; this is {task}, {what} after {seconds:.1} s")
        });
    }
}
