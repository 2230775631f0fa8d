//! The service that links are measured by.

use crate::service::{Call, Reply, Service};

/// The name under which every server has it.
pub const NAME: &str = "doctor";

/// Answers with what it is sent.
#[derive(Clone, Copy, Debug)]
pub struct Echo;

impl Service for Echo {
    fn call(&self, call: Call, reply: Reply) {
        reply.answer(call.message.head, call.message.body);
    }
}
