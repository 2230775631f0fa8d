//! The errors of this crate, and the Python exceptions that they become.

use distribute_ps_tables::ChannelError;
use pyo3::prelude::*;

/// An error of this crate, which becomes one of the package's exceptions.
#[derive(Debug)]
pub enum Error {
    /// An argument is invalid, for the given reason.
    Argument(String),
    /// A server has refused a request, or cannot be reached.
    Channel(ChannelError),
    /// A gradient that must be finite is not, as the text explains.
    NotFinite(String),
    /// The process was forked after it had connected.
    Forked,
    /// Another failure, with its description.
    Other(String),
}

pub type Result<T> = std::result::Result<T, Error>;

impl From<ChannelError> for Error {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<distribute_ps_tables::Error> for Error {
    fn from(error: distribute_ps_tables::Error) -> Self {
        Self::Argument(error.to_string())
    }
}

impl From<distribute_tensor::Error> for Error {
    fn from(error: distribute_tensor::Error) -> Self {
        Self::Argument(error.to_string())
    }
}

impl From<distribute_checkpoint::Error> for Error {
    fn from(error: distribute_checkpoint::Error) -> Self {
        Self::Other(error.to_string())
    }
}

impl Error {
    /// Converts the error to an exception of the package.
    pub fn raise(self, py: Python<'_>) -> PyErr {
        let (class, text, kind) = match self {
            Self::Argument(text) => ("InvalidArgument", text, None),
            Self::NotFinite(text) => ("Refused", text, Some("NotFinite".to_owned())),
            Self::Forked => {
                let text = "this process was forked after connect, and shares the connections of the first one: \
                            connect after the fork";
                ("Forked", text.to_owned(), None)
            }
            Self::Other(text) => ("Error", text, None),
            Self::Channel(error) => {
                let text = error.to_string();
                match error {
                    ChannelError::Refused { refusal, .. } => {
                        ("Refused", text, Some(format!("{:?}", refusal.kind)))
                    }
                    ChannelError::TimedOut { .. } => ("TimedOut", text, None),
                    ChannelError::Unreachable { .. } => ("Unreachable", text, None),
                    ChannelError::TooLarge { .. } => ("TooLarge", text, None),
                    _ => ("Error", text, None),
                }
            }
        };
        let made = py.import("distribute_client.errors").and_then(|errors| {
            let class = errors.getattr(class)?;
            match kind {
                Some(kind) => class.call1((text, kind)),
                None => class.call1((text,)),
            }
        });
        match made {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        }
    }
}
