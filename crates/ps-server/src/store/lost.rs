//! The rejection of requests for tables that a server has lost.

use super::names::listed;
use distribute_ps_tables::{Refusal, RefusalKind, Request};
use parking_lot::Mutex;

/// The names of the tables that a server has lost before this life, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct LostTables(Mutex<Vec<String>>);

impl LostTables {
    pub fn set(&self, names: Vec<String>) {
        *self.0.lock() = names;
    }

    pub fn names(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    /// Returns the rejection of a request whose client relies on lost state.
    pub fn refusal(&self, request: &Request) -> Refusal {
        let names = self.0.lock();
        let lost = if names.is_empty() {
            "and all its tables".to_owned()
        } else {
            format!("and these tables: {}", listed(&names))
        };
        let text = format!(
            "{}: this server has lost changes that it had acknowledged, {lost}: it and its follower exited \
             one after the other, before there were two copies again. Start the chief again, from a \
             checkpoint",
            request.describe()
        );
        Refusal::new(RefusalKind::Lost, text)
    }

    /// Returns a rejection that explains the loss if `refusal` states that a table does not exist, and the table was
    /// lost. Otherwise returns `refusal`.
    pub fn with_explanation(&self, request: &Request, refusal: Refusal) -> Refusal {
        let is_lost = |name: &str| self.0.lock().iter().any(|lost| lost == name);
        if refusal.kind == RefusalKind::NoSuchTable && request.table().is_some_and(is_lost) {
            return self.refusal(request);
        }
        refusal
    }
}
