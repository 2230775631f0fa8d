//! The service by which the leading task of the cluster ends a server.

use crate::ending::{End, Ending};
use crate::fault::{Fault, FaultKind};
use crate::own_task::may_end;
use crate::service::{Call, Reply, Service};
use distribute_cluster::ClusterSpec;
use std::sync::{Arc, Weak};

/// The name of the service.
pub(crate) const NAME: &str = "server";

/// The head of a call that ends the server.
pub(crate) const STOP: &[u8] = b"stop";

/// A service that ends its server.
pub(crate) struct Control {
    pub cluster: Arc<ClusterSpec>,
    pub ending: Weak<Ending>,
}

impl Service for Control {
    fn call(&self, call: Call, reply: Reply) {
        let Call { caller, message } = call;
        if message.head != STOP {
            return reply.fail("of a server one can ask stop, and nothing else: are both of the same build?");
        }
        if !may_end(&self.cluster, &caller) {
            let text = format!(
                "{caller} may not end this server: the chief does or, without one, worker 0; without either, the first task"
            );
            return reply.fault(Fault::new(FaultKind::NotAllowed, text));
        }
        reply.answer("", "");
        if let Some(ending) = self.ending.upgrade() {
            ending.end(End::Chief(caller));
        }
    }
}
