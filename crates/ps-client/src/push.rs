//! Gradients that are pushed to servers, which apply them by their rules. A server that has lost its rules gets them
//! again.

use super::cache::{Fetch, fetch_all};
use super::links::{Ask, Links, Underway, failed};
use super::sharded::as_ids;
use super::variable::id_of_row;
use super::{RemoteVariable, Session};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_ps_tables::{ChannelError, Push, RefusalKind, Request};
use distribute_tensor::HostTensor;
use std::sync::{Arc, Weak};

/// The requests for servers to apply a gradient of one variable.
pub struct PushRequests<'a> {
    variable: &'a RemoteVariable,
    rule: RuleSpec,
    requests: Vec<Ask>,
}

impl<'a> PushRequests<'a> {
    /// Creates the requests for a gradient of all elements, which servers apply by `rule`.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the rows are ids.
    pub fn dense(
        variable: &'a RemoteVariable,
        rule: RuleSpec,
        push: Push,
        gradient: &HostTensor,
    ) -> Result<Self> {
        let tables = variable.value("push")?;
        let one = |(number, shard): (usize, &super::sharded::Shard)| {
            let (table, gradient) = (shard.table.clone(), tables.part(gradient, number)?);
            let bytes = tables.bytes(shard.rows());
            Ok(Ask { server: shard.server, request: Request::Push { table, push, gradient }, bytes })
        };
        let requests = tables.shards().iter().enumerate().map(one).collect::<Result<_>>()?;
        Ok(Self { variable, rule, requests })
    }

    /// Creates the requests for a gradient of rows. `gradient` returns the gradient of the rows at some positions. It
    /// is sent to the shards that have these rows. With `at_all` it is sent to all shards, because the rule also
    /// changes rows without a gradient.
    ///
    /// # Errors
    /// - [`Error::Params`]: a row is out of range.
    /// - The error of `gradient`.
    pub fn rows(
        variable: &'a RemoteVariable,
        rule: RuleSpec,
        push: Push,
        rows: &[usize],
        gradient: impl Fn(&[usize]) -> Result<HostTensor>,
        at_all: bool,
    ) -> Result<Self> {
        if let Some(ids) = variable.ids() {
            let rows: Vec<i64> = rows.iter().copied().map(id_of_row).collect();
            return Ok(Self { variable, rule, requests: ids.push(push, &rows, gradient)? });
        }
        let tables = variable.tables();
        let split = tables.cut.split("push_rows", &as_ids(rows))?;
        let mut requests = Vec::new();
        for (number, shard) in tables.shards().iter().enumerate() {
            if !at_all && split.of(number).is_empty() {
                continue;
            }
            let gradient = gradient(split.positions(number))?;
            let (table, rows) = (shard.table.clone(), as_ids(split.of(number)));
            let bytes = tables.bytes(rows.len());
            let request = Request::PushRows { table, push, rows, gradient };
            requests.push(Ask { server: shard.server, request, bytes });
        }
        Ok(Self { variable, rule, requests })
    }
}

impl Session {
    /// Sets the rules by which servers update variables. Servers create the slots of these rules. A rule that this
    /// process has already set is not sent again.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer, or a table has another rule.
    pub fn set_rules<'a>(
        &self,
        operation: &'static str,
        rules: impl Iterator<Item = (&'a RemoteVariable, RuleSpec)>,
    ) -> Result<()> {
        let new: Vec<_> = rules.filter(|(variable, rule)| *lock(&variable.rule) != Some(*rule)).collect();
        let requests = new.iter().flat_map(|(variable, rule)| {
            let shards = variable.tables().shards().iter();
            shards.map(|shard| set_rule(shard.server, shard.table.clone(), *rule))
        });
        self.links.ask(operation, requests.collect())?;
        new.into_iter().for_each(|(variable, rule)| *lock(&variable.rule) = Some(rule));
        Ok(())
    }

    /// Pushes gradients to servers, and then fetches the values that have changed. `made` is called when servers have
    /// applied the gradients, or as soon as they are in flight if values may be stale. No thread may be computing with
    /// the values.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not apply these gradients, or earlier ones that were in flight.
    ///
    /// If the values cannot be fetched afterwards, the next step fetches them. Until then, pushes in the same step are
    /// refused.
    pub fn push(
        &self,
        operation: &'static str,
        gradients: Vec<PushRequests<'_>>,
        made: impl FnOnce(),
    ) -> Result<()> {
        self.set_rules(operation, gradients.iter().map(|gradient| (gradient.variable, gradient.rule)))?;
        let variables: Vec<_> = gradients.iter().map(|gradient| gradient.variable).collect();
        let pushed = self.send(operation, gradients, made);
        if pushed.as_ref().is_err_and(Error::is_of_a_rule) {
            // A server has lost the rules: they are sent again before the next step.
            variables.into_iter().for_each(RemoteVariable::forget_rule);
        }
        pushed
    }

    fn send(
        &self,
        operation: &'static str,
        gradients: Vec<PushRequests<'_>>,
        made: impl FnOnce(),
    ) -> Result<()> {
        let _servers = tracing::trace_span!("servers").entered();
        self.require_fetched()?;
        // The reads are sent together with the gradients: a server answers requests in their order.
        let pushed = InFlight::start(&self.links, gradients);
        let caches = self.caches();
        let fetch = Fetch::start(&caches);
        let caches: Vec<_> = caches.iter().map(Arc::downgrade).collect();
        let finish = move || {
            let at_once = pushed.wait(operation)?;
            let again = || caches.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
            Ok(match fetch {
                Some(fetch) if at_once => fetch.finish(operation),
                Some(_) => fetch_all(operation, &again()),
                None => Ok(()),
            })
        };
        if self.staleness == 0 {
            let fetched = finish()?;
            made();
            self.fetched(fetched);
            return Ok(());
        }
        made();
        self.add(Box::new(finish))
    }
}

fn set_rule(server: usize, table: String, rule: RuleSpec) -> Ask {
    Ask { server, request: Request::SetRule { table, rule }, bytes: 64 }
}

/// Gradients that are in flight. They are kept for servers that have lost their rules.
struct InFlight {
    links: Arc<Links>,
    underway: Underway,
    /// A copy of each request, with its rule.
    again: Vec<(Ask, RuleSpec)>,
}

impl InFlight {
    fn start(links: &Arc<Links>, gradients: Vec<PushRequests<'_>>) -> Self {
        let requests = |PushRequests { rule, requests, .. }| {
            requests.into_iter().map(move |request: Ask| (request, rule))
        };
        let (mut requests, rules): (Vec<Ask>, Vec<RuleSpec>) =
            gradients.into_iter().flat_map(requests).unzip();
        links.mark(&mut requests);
        let again = requests.iter().cloned().zip(rules).collect();
        Self { links: links.clone(), underway: links.start_marked(requests), again }
    }

    /// Waits until all gradients have been applied. Returns whether that took one attempt, so that reads that were
    /// sent with them include all gradients.
    ///
    /// A table without a rule refuses its gradient and does not change. It then gets the rule and the gradient again.
    ///
    /// # Errors
    /// Returns the error of the first gradient that was not applied. Other gradients may have been applied.
    fn wait(self, operation: &'static str) -> Result<bool> {
        let mut forgotten = Vec::new();
        for (answer, again) in self.underway.wait_each().into_iter().zip(self.again) {
            match answer {
                Err(ChannelError::Refused { refusal, .. }) if refusal.kind == RefusalKind::Rule => {
                    forgotten.push(again);
                }
                answer => drop(answer.map_err(|source| failed(operation, source))?),
            }
        }
        if forgotten.is_empty() {
            return Ok(true);
        }
        // The two requests for a table keep this order. A table that has another rule refuses this one, and its error
        // names both.
        let both = forgotten.into_iter().flat_map(|(gradient, rule)| {
            let table = gradient.request.table().unwrap_or_default().to_owned();
            [set_rule(gradient.server, table, rule), gradient]
        });
        self.links.start_marked(both.collect()).wait(operation)?;
        Ok(false)
    }
}
