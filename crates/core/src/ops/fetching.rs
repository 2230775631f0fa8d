//! Fetching the values of variables on parameter servers, for the steps that compute with them.

use crate::context::merging;
use crate::strategy::Strategy;
use crate::variables::AllOnServers;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_ps_client::ParameterServers;
use distribute_ps_client::internal::{Ask, Pushed, Step};

impl Strategy {
    /// Begins a step, for which values are fetched unless it is made inside of another. Without parameter servers there is nothing to
    /// be done.
    pub(super) fn fetch_values(&self) -> Result<Option<Step<'_>>> {
        if !self.has_servers() {
            return Ok(None);
        }
        let Some(servers) = self.extended().parameter_servers() else { return Ok(None) };
        let _servers = tracing::trace_span!("servers").entered();
        let pull = || self.all_on_servers().pull("run");
        servers.steps().begin(merging(self).is_some(), pull).map(Some)
    }

    /// Sends gradients to servers, and fetches what has changed behind them. `made` is called when they are there or, where values may lack
    /// them for some steps, under way. Nobody may be computing with the values.
    ///
    /// # Errors
    /// Of a server, for these gradients or earlier ones that were under way. Where values cannot be fetched behind them, the next step
    /// does, and what is pushed before it in the same one is refused.
    #[doc(hidden)]
    pub fn push(
        &self,
        operation: &'static str,
        servers: &ParameterServers,
        gradients: Vec<(Ask, RuleSpec)>,
        made: impl FnOnce(),
    ) -> Result<()> {
        let _servers = tracing::trace_span!("servers").entered();
        servers.steps().require_fetched()?;
        // What is asked for behind gradients is sent with them: a server answers in the order in which it is asked.
        let pushed = Pushed::start(servers.links(), gradients);
        let finish = self.all_on_servers().pull_behind(operation, pushed);
        if servers.steps().staleness() == 0 {
            let fetched = finish()?;
            made();
            servers.steps().fetched(fetched);
            return Ok(());
        }
        made();
        servers.steps().add(finish)
    }

    /// Waits until servers have acknowledged all gradients, unless a step is being made.
    ///
    /// # Errors
    /// Of a server that has not.
    #[doc(hidden)]
    pub fn await_updates(&self) -> Result<()> {
        self.extended().parameter_servers().map_or(Ok(()), |servers| servers.steps().settle())
    }

    /// Runs `body`, which may write fetched values, unless a step is being made that computes with them; `None` then.
    ///
    /// # Errors
    /// Those of `body`.
    pub(crate) fn between_steps<T>(
        &self,
        operation: &'static str,
        body: impl FnOnce() -> Result<T>,
    ) -> Result<Option<T>> {
        match self.extended().parameter_servers() {
            Some(servers) => servers.steps().between(operation, body),
            None => body().map(Some),
        }
    }

    /// Something was written on servers: the next step begins with it.
    pub(crate) fn have_written(&self) {
        self.extended().parameter_servers().into_iter().for_each(|servers| servers.steps().have_written());
    }

    /// Values could not be fetched where no error can be returned: the step that is being made fails. Gives the error back if there is
    /// none.
    pub(crate) fn lose(&self, error: Error) -> Option<Error> {
        match self.extended().parameter_servers() {
            Some(servers) => servers.steps().lose(error),
            None => Some(error),
        }
    }

    fn all_on_servers(&self) -> AllOnServers {
        AllOnServers::among(self.all_variables().iter())
    }
}
