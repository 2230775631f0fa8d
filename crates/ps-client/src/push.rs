//! Pushing gradients to parameter servers, which apply them by update rules. If a server has lost its rules, the rules
//! are sent again with the gradients.

use super::cache::{Fetch, fetch_all};
use super::channels::{Answer, Channels, PendingReplies, ServerRequest, failed};
use super::hot_step::HotStep;
use super::sharded::as_ids;
use super::variable::id_of_row;
use super::{RemoteVariable, Session};
use distribute_base::internal::lock;
use distribute_base::{Error, Result};
use distribute_optim::RuleSpec;
use distribute_ps_tables::{ChannelError, Push, RefusalKind, Request};
use distribute_tensor::HostTensor;
use std::sync::{Arc, Weak};

/// The requests that make servers apply the gradient of one variable.
pub struct PushRequests<'a> {
    variable: &'a RemoteVariable,
    rule: RuleSpec,
    requests: Vec<ServerRequest>,
}

impl<'a> PushRequests<'a> {
    /// Creates the requests for a dense gradient, to be applied by `rule`.
    ///
    /// # Errors
    /// - [`Error::NotSupported`]: the variable's rows are identified by ids.
    pub fn dense(
        variable: &'a RemoteVariable,
        rule: RuleSpec,
        push: Push,
        gradient: &HostTensor,
    ) -> Result<Self> {
        let tables = variable.value("push")?;
        let one = |(number, shard): (usize, &super::sharded::Shard)| {
            let (table, gradient) = (shard.table.clone(), tables.shard_value(gradient, number)?);
            let bytes = tables.bytes(shard.rows());
            Ok(ServerRequest {
                server: shard.server,
                request: Request::Push { table, push, gradient },
                bytes,
            })
        };
        let requests = tables.shards().iter().enumerate().map(one).collect::<Result<_>>()?;
        Ok(Self { variable, rule, requests })
    }

    /// Returns `true` if there is a request that changes the tables of a variable on a server.
    fn changes(&self, variable: &RemoteVariable, server: usize) -> bool {
        std::ptr::eq(self.variable, variable) && self.requests.iter().any(|request| request.server == server)
    }

    /// Creates the requests for a gradient of some rows. `gradient` returns the gradients of the elements of `rows` at
    /// the given positions; each shard receives those of its rows.
    ///
    /// If `at_all` is `true`, shards without any of these rows receive a request as well, because the rule also changes
    /// rows without a gradient. This has no effect if rows have ids.
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
        let split = tables.partition.split("push_rows", &as_ids(rows))?;
        let mut requests = Vec::new();
        for (number, shard) in tables.shards().iter().enumerate() {
            if !at_all && split.of(number).is_empty() {
                continue;
            }
            let gradient = gradient(split.positions(number))?;
            let (table, rows) = (shard.table.clone(), as_ids(split.of(number)));
            let bytes = tables.bytes(rows.len());
            let request = Request::PushRows { table, push, rows, gradient };
            requests.push(ServerRequest { server: shard.server, request, bytes });
        }
        Ok(Self { variable, rule, requests })
    }
}

impl Session {
    /// Sets the rules by which servers update variables. Rules that this process has already set are not sent again.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not answer, or a table already has a different rule.
    pub fn set_rules<'a>(
        &self,
        operation: &'static str,
        rules: impl Iterator<Item = (&'a RemoteVariable, RuleSpec)>,
    ) -> Result<()> {
        let new: Vec<_> =
            rules.filter(|(variable, rule)| lock(&variable.rule).as_ref() != Some(rule)).collect();
        let requests = new.iter().flat_map(|(variable, rule)| {
            let shards = variable.tables().shards().iter();
            shards.map(|shard| set_rule(shard.server, shard.table.clone(), rule.clone()))
        });
        self.channels.ask(operation, requests.collect())?;
        new.into_iter().for_each(|(variable, rule)| *lock(&variable.rule) = Some(rule));
        Ok(())
    }

    /// Pushes gradients to servers, and then fetches the values that have changed. Calls `made` once the servers have
    /// applied the gradients or, if values may be stale, once the gradients are in flight. No thread may be computing
    /// with the values.
    ///
    /// # Errors
    /// - [`Error::Server`]: a server did not apply these gradients, or earlier ones that were in flight; or the values
    ///   after earlier gradients of the same step could not be fetched.
    /// - [`Error::InvalidArgument`]: another thread does not finish writing values in time.
    ///
    /// If the values after these gradients cannot be fetched, this call succeeds, and the next step fetches them.
    /// Another push in the same step returns the error instead of pushing.
    pub fn push(
        &self,
        operation: &'static str,
        gradients: Vec<PushRequests<'_>>,
        made: impl FnOnce(),
    ) -> Result<()> {
        self.set_rules(
            operation,
            gradients.iter().map(|gradient| (gradient.variable, gradient.rule.clone())),
        )?;
        let variables: Vec<_> = gradients.iter().map(|gradient| gradient.variable).collect();
        let pushed = self.send(operation, gradients, made);
        if pushed.as_ref().is_err_and(Error::is_rule_conflict) {
            // A server has lost the rules: they are sent again before the next step.
            variables.into_iter().for_each(RemoteVariable::forget_rule);
        }
        pushed
    }

    // INV-86
    /// Pushes gradients together with the other workers: one of them sends each gradient. `agree` is called with this
    /// worker's result, and must return an error on all workers if any of them has failed. Then fetches the values that
    /// have changed; if that fails, the next step fetches them. No thread may be computing with the values.
    ///
    /// `variables` are those that the step may change. With their hot rows, `agree` sends the bytes that it gets to all
    /// workers, and returns those of all, in the order of ranks. If the hot rows cannot be read, the step is made
    /// nevertheless, and workers request the rows when they look them up.
    ///
    /// # Errors
    /// Returns the error of `agree`. Some servers may have applied their gradients.
    pub fn push_in_lock_step<B: AsRef<[u8]>>(
        &self,
        operation: &'static str,
        variables: &[&RemoteVariable],
        gradients: Result<Vec<PushRequests<'_>>>,
        agree: impl FnOnce(Result<Vec<u8>>) -> Result<Vec<B>>,
    ) -> Result<()> {
        let _servers = tracing::trace_span!("servers").entered();
        let hot = self.lock_step().map(|lock_step| HotStep::begin(lock_step, variables));
        let push = || {
            let gradients = gradients?;
            self.require_fetched()?;
            let rules = gradients.iter().map(|gradient| (gradient.variable, gradient.rule.clone()));
            self.set_rules(operation, rules)?;
            let is_changed =
                |variable: &RemoteVariable, server| gradients.iter().any(|all| all.changes(variable, server));
            // The deadline of the gradients is that of the reads.
            let read = |hot: &HotStep<'_>| hot.reads(operation, is_changed);
            let (reads, requests) = hot.as_ref().map(read).unwrap_or_default();
            let pushed = InFlightPush::start(&self.channels, gradients, requests).wait(operation)?;
            Ok(hot.as_ref().map(|hot| hot.report(operation, reads, pushed.reads)).unwrap_or_default())
        };
        self.discard_prefetched();
        let agreed = agree(push());
        // Also after an error: some rows may have changed.
        lock(&self.clock).advance();
        let reports = agreed?;
        hot.into_iter().for_each(|hot| hot.end(&reports));
        let caches = self.caches();
        let fetch = Fetch::start(&caches);
        // Rows are for the next step; the values are complete when this step returns.
        self.request_rows(operation);
        self.record_fetch(fetch.map_or(Ok(()), |fetch| fetch.finish(operation)));
        Ok(())
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
        let pushed = InFlightPush::start(&self.channels, gradients, Vec::new());
        lock(&self.clock).advance();
        let caches = self.caches();
        let fetch = Fetch::start(&caches);
        let caches: Vec<_> = caches.iter().map(Arc::downgrade).collect();
        let finish = move || {
            let at_once = pushed.wait(operation)?.at_once;
            let alive = || caches.iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
            Ok(match fetch {
                Some(fetch) if at_once => fetch.finish(operation),
                Some(_) => fetch_all(operation, &alive()),
                None => Ok(()),
            })
        };
        if self.staleness == 0 {
            let fetched = finish()?;
            made();
            self.record_fetch(fetched);
            return Ok(());
        }
        made();
        self.add(Box::new(finish))
    }
}

fn set_rule(server: usize, table: String, rule: RuleSpec) -> ServerRequest {
    ServerRequest { server, request: Request::SetRule { table, rule }, bytes: 64 }
}

/// The result of a push.
struct Pushed {
    /// Whether no gradient had to be sent again, so that reads that followed the gradients include all of them.
    at_once: bool,
    /// The answers to the reads that were sent with the gradients. If a gradient was sent again, there are none.
    reads: Vec<Answer>,
}

/// Gradients in flight, which are kept in case a server has lost its rules.
struct InFlightPush {
    channels: Arc<Channels>,
    replies: PendingReplies,
    /// A copy of each request, together with the rule of its variable.
    retained: Vec<(ServerRequest, RuleSpec)>,
}

impl InFlightPush {
    /// Sends gradients, and after them `reads`. All have one deadline.
    fn start(channels: &Arc<Channels>, gradients: Vec<PushRequests<'_>>, reads: Vec<ServerRequest>) -> Self {
        let requests = |PushRequests { rule, requests, .. }| {
            requests.into_iter().map(move |request: ServerRequest| (request, rule.clone()))
        };
        let (mut requests, rules): (Vec<ServerRequest>, Vec<RuleSpec>) =
            gradients.into_iter().flat_map(requests).unzip();
        channels.number_changes(&mut requests);
        let retained = requests.iter().cloned().zip(rules).collect();
        requests.extend(reads);
        let replies = channels.start_numbered(requests, channels.deadline());
        Self { channels: channels.clone(), replies, retained }
    }

    /// Waits until all gradients were applied, and all reads were answered or have failed.
    ///
    /// A table without a rule rejects a gradient and does not change. Its rule and the gradient are then sent again.
    ///
    /// # Errors
    /// Returns the error of the first gradient that was not applied. Other gradients may have been applied.
    fn wait(self, operation: &'static str) -> Result<Pushed> {
        let mut forgotten = Vec::new();
        let mut answers = self.replies.wait_each();
        let reads = answers.split_off(self.retained.len().min(answers.len()));
        for (answer, retained) in answers.into_iter().zip(self.retained) {
            match answer {
                Err(ChannelError::Refused { refusal, .. }) if refusal.kind == RefusalKind::Rule => {
                    forgotten.push(retained);
                }
                answer => drop(answer.map_err(|source| failed(operation, source))?),
            }
        }
        if forgotten.is_empty() {
            return Ok(Pushed { at_once: true, reads });
        }
        // The two requests for a table keep this order. A table that has a different rule refuses this one, and its
        // error names both.
        let both = forgotten.into_iter().flat_map(|(gradient, rule)| {
            let table = gradient.request.table().unwrap_or_default().to_owned();
            [set_rule(gradient.server, table, rule), gradient]
        });
        self.channels.start_numbered(both.collect(), self.channels.deadline()).wait(operation)?;
        Ok(Pushed { at_once: false, reads: Vec::new() })
    }
}
