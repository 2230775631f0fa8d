//! The step of workers that store tables together. Each worker sends its share of the gradients to the servers of the
//! tables. When all workers have succeeded, each updates its own copy of the other variables.

use super::{OPERATION, Servers};
use crate::progress::{Change, Incomplete};
use crate::reduce::operands::Operands;
use crate::sync::{StepSync, Threads};
use crate::update::Update;
use crate::update::local::InPlaceUpdater;
use bytes::Bytes;
use distribute_base::Result;
use distribute_base::internal::ReplicaGradient;
use distribute_core::internal::exchange_in_call;
use distribute_ps_client::internal::{RemoteVariable, Session};

impl Servers {
    // INV-86
    /// Applies reduced gradients together with the other workers, and counts the step.
    ///
    /// # Errors
    /// - [`Error::IncompleteState`]: sending the gradients has failed on a worker. Some tables may already contain the
    ///   gradients of this step.
    pub(super) fn apply_in_lock_step(
        &self,
        session: &Session,
        update: &Update<'_>,
        gradients: &[Option<ReplicaGradient>],
        change: &Change<'_>,
        sync: &StepSync<'_>,
        threads: &Threads<'_>,
    ) -> Result<()> {
        self.require_rules(update)?;
        let requests = self.requests(update, gradients);
        change.begin();
        let variables: Vec<&RemoteVariable> = self.on_servers().map(|(_, of)| &*of.remote).collect();
        let agree = |pushed: Result<Vec<u8>>| {
            let pushed = pushed.map(Bytes::from);
            match sync.group_call("its tables") {
                Some(calling) => {
                    exchange_in_call(OPERATION, calling, pushed, Bytes::clone).map(|(_, all)| all)
                }
                None => pushed.map(|mine| vec![mine]),
            }
        };
        session
            .push_in_lock_step(OPERATION, &variables, requests, agree)
            .map_err(|error| Incomplete::Tables.interrupted(update.operation, change.number(), error))?;
        let operands = Operands::new(update.parameters(), &[(1., gradients)], 1)?;
        let operands = operands.only(|number| !self.is_on_servers(number));
        // The gradients have already been transformed.
        InPlaceUpdater::new(update, &[]).reduce_and_apply(change, &operands, threads)?;
        update.parameters().commit(change)
    }
}
