//! Servers that came back without what they had.

use distribute_params::{ChannelError, Refusal, RefusalKind};

/// What a server has refused, with what to do where it has forgotten a table that a variable is in.
pub(super) fn explained(error: ChannelError) -> ChannelError {
    match error {
        ChannelError::Refused { server, refusal } if refusal.kind == RefusalKind::NoSuchTable => {
            let text = format!(
                "{}; it came back without its tables: give each server a folder, in which it keeps them, and start the chief again \
                 from a checkpoint",
                refusal.text
            );
            ChannelError::Refused { server, refusal: Refusal::new(refusal.kind, text) }
        }
        other => other,
    }
}

impl crate::Error {
    /// Whether a server has another rule for a variable than it was told, or none.
    pub(crate) fn is_of_a_rule(&self) -> bool {
        let Self::Server { source, .. } = self else { return false };
        matches!(&**source, ChannelError::Refused { refusal, .. } if refusal.kind == RefusalKind::Rule)
    }
}
