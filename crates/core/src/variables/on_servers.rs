//! Variables on parameter servers, as optimizers use them.

use super::rows::id_of_row;
use super::storage::{OnServers, Storage};
use super::variable::Variable;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_params::Push;
use distribute_ps_client as servers;
use distribute_ps_client::internal::{Ask, Finish, Pull, Pushed, Sharded, Staged};
use distribute_tensor::HostTensor;
use std::sync::Arc;

/// Variables of a strategy that are on servers. It keeps neither the variables nor the strategy alive.
pub(crate) struct AllOnServers(Vec<Arc<OnServers>>);

impl AllOnServers {
    /// Those among some.
    pub(crate) fn among<'a>(variables: impl Iterator<Item = &'a Variable>) -> Self {
        Self(variables.filter_map(|variable| variable.servers().cloned()).collect())
    }

    /// Fetches what has changed, all at once. Nobody may be computing with them.
    pub(crate) fn pull(&self, operation: &'static str) -> Result<()> {
        servers::pull(operation, &self.on_both())
    }

    /// Asks for what has changed behind gradients that were sent; what is given waits for both.
    pub(crate) fn pull_behind(self, operation: &'static str, pushed: Pushed) -> Finish {
        let pull = Pull::start(&self.on_both());
        Box::new(move || {
            let at_once = pushed.wait(operation)?;
            Ok(match pull {
                Some(pull) if at_once => pull.finish(operation, &self.on_both()),
                Some(_) => self.pull(operation),
                None => Ok(()),
            })
        })
    }

    fn on_both(&self) -> Vec<(&Sharded, &Staged)> {
        self.0.iter().filter_map(|on| Some((&on.rows, on.staged.as_ref()?))).collect()
    }
}

/// Tells servers by which rules they update variables.
pub fn set_rules<'a>(
    operation: &'static str,
    rules: impl Iterator<Item = (&'a Variable, RuleSpec)>,
) -> Result<()> {
    let mut asks = Vec::new();
    let mut links = None;
    for (variable, rule) in rules {
        let tables = variable.require_tables(operation)?;
        links = Some(tables.links());
        asks.extend(tables.set_rule(rule));
    }
    links.map_or(Ok(()), |links| links.ask(operation, asks).map(drop))
}

impl Variable {
    /// The copy of a variable that has one, once all updates have reached it that are under way.
    pub(super) fn settled(&self) -> Result<&Storage> {
        self.strategy().await_updates()?;
        self.copy(0)
    }

    // INV-55
    /// Brings what candle computes with up to date, unless a step has begun with it: its values stay until it is over. All of it is
    /// fetched from now on, and at once where it has not been yet.
    pub(super) fn bring(&self, operation: &'static str) -> Result<()> {
        let Some(staged) = self.staged() else { return Ok(()) };
        let pull = || self.copy(0)?.pull(operation);
        let between = || if staged.is_here() { pull() } else { staged.become_whole(pull) };
        match self.strategy().between_steps(operation, between)? {
            Some(()) => Ok(()),
            None => staged.become_whole(pull),
        }
    }

    /// Removes a variable from the parameter servers that it is on, with its slots, for all workers. Whoever uses it afterwards gets an
    /// error, so drop it, and its model and optimizer, too.
    ///
    /// To drop a variable doesn't do this: others may be using it, and this program may go on with it when it is started again. Its name
    /// is not given to another one of the same strategy.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is on parameter servers; [`Error::Server`], after which some shards may be gone.
    pub fn remove_from_servers(&self) -> Result<()> {
        const OPERATION: &str = "remove_from_servers";
        let tables = self.require_tables(OPERATION)?;
        self.writing(|| tables.remove())
    }

    fn require_tables(&self, operation: &'static str) -> Result<&Sharded> {
        Ok(match self.ids() {
            Some(ids) => ids.tables(),
            None => &self.require_servers(operation)?.rows,
        })
    }

    fn require_servers(&self, operation: &'static str) -> Result<&OnServers> {
        let nowhere =
            || Error::invalid(operation, format!("variable {} is not on parameter servers", self.name()));
        self.servers().map(|on| &**on).ok_or_else(nowhere)
    }

    /// What applies a gradient of all of it.
    #[doc(hidden)]
    pub fn push(&self, push: Push, gradient: &HostTensor) -> Result<Vec<Ask>> {
        self.require_servers("push")?.rows.push(push, gradient)
    }

    /// What applies a gradient of rows, of which `gradient` gives those at some positions; at all shards, if the rule moves rows without
    /// one.
    #[doc(hidden)]
    pub fn push_rows(
        &self,
        push: Push,
        rows: &[usize],
        gradient: impl Fn(&[usize]) -> Result<HostTensor>,
        at_all: bool,
    ) -> Result<Vec<Ask>> {
        if let Some(ids) = self.ids() {
            return ids.push(push, &rows.iter().copied().map(id_of_row).collect::<Vec<_>>(), gradient);
        }
        self.require_servers("push_rows")?.rows.push_rows(push, rows, gradient, at_all)
    }

    /// What a rule keeps beside it, of `count` slots, by name.
    #[doc(hidden)]
    pub fn slots_on_servers(
        &self,
        operation: &'static str,
        count: usize,
    ) -> Result<Vec<(String, HostTensor)>> {
        self.require_servers(operation)?.rows.slots(operation, count)
    }

    /// Sets what a rule keeps beside it.
    #[doc(hidden)]
    pub fn set_slots_on_servers(
        &self,
        operation: &'static str,
        slots: &[(String, HostTensor)],
    ) -> Result<()> {
        self.require_servers(operation)?.rows.set_slots(operation, slots)
    }

    /// Whether candle has no more of it than the rows of each batch.
    #[doc(hidden)]
    pub fn is_fetched_by_row(&self) -> bool {
        self.is_dynamic() || self.staged().is_some_and(|staged| !staged.is_whole())
    }

    /// Whether candle can compute with it.
    #[doc(hidden)]
    pub fn is_ready(&self) -> bool {
        self.staged().is_none_or(Staged::is_ready)
    }

    fn staged(&self) -> Option<&Staged> {
        self.servers()?.staged.as_ref()
    }
}
