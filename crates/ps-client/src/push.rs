//! Servers that came back without what they had.

use super::links::{Ask, Links, Underway, failed};
use distribute_base::Result;
use distribute_optim::RuleSpec;
use distribute_params::{ChannelError, Refusal, RefusalKind, Request};
use std::sync::Arc;

/// Gradients that are under way, and what is done where a server has forgotten by which rule it applies them.
pub struct Pushed {
    links: Arc<Links>,
    underway: Underway,
    /// Each once more, with its rule.
    again: Vec<(Ask, RuleSpec)>,
}

impl Pushed {
    /// Sends gradients, each of a table of this rule.
    pub fn start(links: &Arc<Links>, gradients: Vec<(Ask, RuleSpec)>) -> Self {
        let (mut asks, rules): (Vec<Ask>, Vec<RuleSpec>) = gradients.into_iter().unzip();
        links.mark(&mut asks);
        let again = asks.iter().cloned().zip(rules).collect();
        Self { links: links.clone(), underway: links.start_marked(asks), again }
    }

    /// Waits until all have been applied, and says whether that was done at once, so that what was asked for behind them has them all.
    ///
    /// A table that has no rule has refused its gradient, and is as it was: it is told the rule, and given the gradient again.
    ///
    /// # Errors
    /// Of the first that was not applied: others may have been.
    pub fn wait(self, operation: &'static str) -> Result<bool> {
        let mut forgotten = Vec::new();
        for (answer, once_more) in self.underway.wait_each().into_iter().zip(self.again) {
            match answer {
                Err(ChannelError::Refused { refusal, .. }) if refusal.kind == RefusalKind::Rule => {
                    forgotten.push(once_more);
                }
                answer => drop(answer.map_err(|source| failed(operation, source))?),
            }
        }
        if forgotten.is_empty() {
            return Ok(true);
        }
        // Of one table both go in this order. One that has another rule refuses this one, and says which it has.
        let both = forgotten.into_iter().flat_map(|(gradient, rule)| {
            let table = gradient.request.table().unwrap_or_default().to_owned();
            let request = Request::SetRule { table, rule };
            [Ask { server: gradient.server, request, bytes: 64 }, gradient]
        });
        self.links.start_marked(both.collect()).wait(operation)?;
        Ok(false)
    }
}

/// What a server has refused, with what to do where it has forgotten a table that a variable is in.
pub(super) fn explained(error: ChannelError) -> ChannelError {
    match error {
        ChannelError::Refused { server, refusal } if refusal.kind == RefusalKind::NoSuchTable => {
            let text = format!(
                "{}; it came back without its tables: it has no folder, or what was in it is gone. Give each server a folder, in which it \
                 keeps them, and start the chief again from a checkpoint",
                refusal.text
            );
            ChannelError::Refused { server, refusal: Refusal::new(refusal.kind, text) }
        }
        other => other,
    }
}
